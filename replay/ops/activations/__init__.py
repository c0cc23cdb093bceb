# pyright: strict
"""Activations and softmax."""
