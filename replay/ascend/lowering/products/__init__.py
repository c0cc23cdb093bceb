"""Lowering of matrix products and convolutions."""
