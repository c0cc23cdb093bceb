# pyright: strict
"""Views of all other values of the library."""
