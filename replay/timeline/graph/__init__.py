# pyright: strict
"""The dependency graph of a step: built from a trace, and scheduled."""
