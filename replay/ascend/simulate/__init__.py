# pyright: strict
"""A whole op and a whole step on a simulated device."""
