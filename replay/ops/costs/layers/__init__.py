# pyright: strict
"""Lowering of whole layers: attention, experts, recurrence."""
