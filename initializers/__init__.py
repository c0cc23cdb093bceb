# pyright: strict
"""Fill argument tensors with realistic values."""
