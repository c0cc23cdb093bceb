# pyright: strict
"""Read the bytes of a file into tables."""
