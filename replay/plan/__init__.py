# pyright: strict
"""Makes a plan from a trace."""
