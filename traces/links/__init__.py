# pyright: strict
"""Link device time to ops, ops to their enclosing ops, and ops to batches."""
