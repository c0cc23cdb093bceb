# pyright: strict
"""Tensors that the user supplies."""
