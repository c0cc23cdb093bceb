# pyright: strict
"""The mathematics of vendor ops, without a declared op."""
