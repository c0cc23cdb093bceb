# pyright: strict
"""What recorded names and tensors tell of collectives: the operation, and what it moves."""
