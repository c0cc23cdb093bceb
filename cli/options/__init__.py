# pyright: strict
"""Flags that several commands share, and the types of their values."""
