# pyright: strict
"""Predicts whole ops and whole steps on a simulated device."""
