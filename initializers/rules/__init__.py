# pyright: strict
"""Built-in initializers, one file per family of ops."""
