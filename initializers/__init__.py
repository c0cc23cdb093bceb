# pyright: strict
"""Fill argument tensors with realistic values; knows tensors, not what devices cost."""
