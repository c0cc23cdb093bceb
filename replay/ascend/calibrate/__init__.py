# pyright: strict
"""Fitting simulated devices to measurements."""
