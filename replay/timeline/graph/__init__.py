# pyright: strict
"""A step as a graph of what waited for what: found in a trace, and scheduled."""
