# pyright: strict
"""The op and its reference: what they are, how they are called, and how results are compared."""
