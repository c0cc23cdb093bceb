# pyright: strict
"""A second file that completes the first."""
