# pyright: strict
"""Rules that list the kernels of an op on an NPU."""
