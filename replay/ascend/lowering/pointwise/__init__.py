"""Lowering of elementwise ops."""
