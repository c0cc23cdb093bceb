"""Converts a captured plan to the form that servers run: fused kernels, writes to paged caches, quantized weights."""
