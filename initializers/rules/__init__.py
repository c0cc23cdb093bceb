# pyright: strict
"""The built-in initializers, one family of ops per file."""
