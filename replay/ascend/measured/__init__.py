# pyright: strict
"""Kernels measured on real devices, as the Ascend profiler writes them."""
