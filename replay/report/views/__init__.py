"""Views of all other library values."""
