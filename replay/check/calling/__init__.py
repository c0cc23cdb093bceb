# pyright: strict
"""The op and its reference: how they are found and called, and how results are compared."""
