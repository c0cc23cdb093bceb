# pyright: strict
"""A run in every output format, and its sections."""
