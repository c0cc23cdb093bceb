# pyright: strict
"""Ops run and timed."""
