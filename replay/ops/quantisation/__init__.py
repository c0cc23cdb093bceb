# pyright: strict
"""To few bits and back."""
