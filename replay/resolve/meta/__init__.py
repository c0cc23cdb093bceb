# pyright: strict
"""Calls on meta tensors."""
