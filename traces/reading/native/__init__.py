# pyright: strict
"""The compiled part of the reader, in Python and C."""
