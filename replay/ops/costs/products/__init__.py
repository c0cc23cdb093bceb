# pyright: strict
"""Lowering of matrix products and convolutions."""
