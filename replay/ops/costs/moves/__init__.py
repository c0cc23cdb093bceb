# pyright: strict
"""Lowering of ops that move data: copies, views, gathers."""
