# pyright: strict
"""Declarations of vendor ops: schemas, names, libraries."""
