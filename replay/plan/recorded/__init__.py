# pyright: strict
"""What was recorded of each op, before anything is resolved."""
