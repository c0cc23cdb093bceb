"""A captured plan in the form in which servers run it: fused kernels, writes to paged caches, quantised weights."""
