# pyright: strict
"""Scans and causal convolutions."""
