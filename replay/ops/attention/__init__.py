# pyright: strict
"""Attention."""
