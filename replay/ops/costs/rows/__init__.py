# pyright: strict
"""Lowering of ops that work along rows: norms, reductions, pooling, transforms."""
