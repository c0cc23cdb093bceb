# pyright: strict
"""Ops over the memory budget, made smaller."""
