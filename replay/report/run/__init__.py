# pyright: strict
"""A run in every format, and its sections."""
