# pyright: strict
"""Fits simulated devices to measurements."""
