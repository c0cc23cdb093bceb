# pyright: strict
"""Functions that draw lengths, indices, pages and experts, shared by several rules."""
