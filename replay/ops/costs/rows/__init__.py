# pyright: strict
"""Lowering of ops along rows: norms, reductions, pooling, transforms."""
