# pyright: strict
"""Calls as they reach torch: what, on which tensors, from where."""
