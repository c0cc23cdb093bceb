# pyright: strict
"""Ops that write key-value caches or move data between them."""
