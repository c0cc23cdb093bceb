# pyright: strict
"""Guesses information that a trace lacks from what it contains."""
