# pyright: strict
"""Copies, views that copy, scatters, convolutions."""
