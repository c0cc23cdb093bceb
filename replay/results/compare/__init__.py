# pyright: strict
"""Runs compared."""
