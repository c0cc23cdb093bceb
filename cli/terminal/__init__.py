# pyright: strict
"""Terminal input and output: console, progress, signals."""
