# pyright: strict
"""Writes to and moves between key-value caches."""
