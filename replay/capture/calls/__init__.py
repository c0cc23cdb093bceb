# pyright: strict
"""Calls recorded as torch receives them: the op, its tensors, and the calling module."""
