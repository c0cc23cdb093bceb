# pyright: strict
"""Link device time to ops, ops to ops, and ops to batches."""
