"""Portable implementations of vendor ops."""
