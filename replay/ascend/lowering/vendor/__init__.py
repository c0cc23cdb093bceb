"""Lowering of vendor ops."""
