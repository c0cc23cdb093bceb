# pyright: strict
"""Descriptions of all ops, one folder per op family; `table` collects all families."""
