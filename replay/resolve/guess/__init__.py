# pyright: strict
"""Guesses information that a trace does not record from the rest of the trace."""
