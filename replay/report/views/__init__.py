# pyright: strict
"""Views of all other library values."""
