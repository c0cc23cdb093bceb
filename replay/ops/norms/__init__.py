# pyright: strict
"""Norms, with what vendors fuse to them."""
