"""Bytes of a file to tables."""
