# pyright: strict
"""Lowering of elementwise ops."""
