# pyright: strict
"""Norms, and the ops that vendors fuse with them."""
