# pyright: strict
"""From a trace to a plan."""
