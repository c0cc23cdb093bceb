# pyright: strict
"""One file per output format, all from the same results."""
