# pyright: strict
"""Embedding tables and jagged tensors."""
