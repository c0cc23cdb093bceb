# pyright: strict
"""The terminal: console, progress, signals."""
