# pyright: strict
"""Resolves recorded op names to callable functions."""
