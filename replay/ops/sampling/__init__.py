# pyright: strict
"""Choosing the best of a row, and sampling."""
