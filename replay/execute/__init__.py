# pyright: strict
"""Runs and times ops."""
