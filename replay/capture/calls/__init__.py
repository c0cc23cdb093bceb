# pyright: strict
"""Calls as they reach torch: the op, its tensors, and the calling module."""
