# pyright: strict
"""Calls ops on meta tensors."""
