# pyright: strict
"""From a plan op to tensors."""
