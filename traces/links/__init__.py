# pyright: strict
"""What belongs to what: device time to ops, ops to ops, ops to batches."""
