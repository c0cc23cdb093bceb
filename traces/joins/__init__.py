# pyright: strict
"""Complete one file with data from a second one."""
