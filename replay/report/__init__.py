# pyright: strict
"""Report formats: one module per output format, all built from the same results."""
