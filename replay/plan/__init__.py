# pyright: strict
"""Make a plan from a trace."""
