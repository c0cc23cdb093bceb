# pyright: strict
"""Copies, copied views, scatters, convolutions."""
