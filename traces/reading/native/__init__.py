# pyright: strict
"""The compiled half of reading, Python and C together."""
