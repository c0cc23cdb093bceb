# pyright: strict
"""Compare runs."""
