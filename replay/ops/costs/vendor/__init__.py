# pyright: strict
"""Lowering of vendor ops."""
