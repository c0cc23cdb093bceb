# pyright: strict
"""Quantisation and dequantisation."""
