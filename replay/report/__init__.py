# pyright: strict
"""One file per output format, all fed by the same results."""
