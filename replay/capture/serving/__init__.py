"""Converts a captured plan to the calls of servers: fused kernels, writes to paged caches, quantized weights."""
