# pyright: strict
"""Rotary position embedding."""
