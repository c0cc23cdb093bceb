# pyright: strict
"""Shrink ops that exceed the memory budget."""
