# pyright: strict
"""Records calls as torch receives them: the op, its tensors, and the calling module."""
