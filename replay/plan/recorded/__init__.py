# pyright: strict
"""What was recorded of each op, before any op is resolved."""
