# pyright: strict
"""Derive a collective's operation and sizes from recorded names and tensors."""
