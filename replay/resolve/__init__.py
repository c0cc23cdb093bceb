# pyright: strict
"""Resolves a recorded op name to a callable function."""
