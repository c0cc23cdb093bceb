# pyright: strict
"""Finds and calls the op and its reference, and compares their results."""
