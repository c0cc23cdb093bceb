# pyright: strict
"""What is tried on an op, one subject a module: each makes trials, and says what became of one."""
