# pyright: strict
"""Embedding tables, jagged tensors."""
