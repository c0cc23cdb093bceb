# pyright: strict
"""Complete one file with data from another."""
