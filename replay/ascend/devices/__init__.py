# pyright: strict
"""Device files: datasheet numbers with unit, source and confidence."""
