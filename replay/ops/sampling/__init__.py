# pyright: strict
"""Top-k per row, and sampling."""
