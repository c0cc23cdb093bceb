# pyright: strict
"""Turn the arguments of a plan's op into tensors."""
