# pyright: strict
"""Tensors supplied by the user."""
