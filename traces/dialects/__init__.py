# pyright: strict
"""One reader per kind of profile file."""
