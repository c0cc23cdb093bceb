# pyright: strict
"""Bytes of a file to tables."""
