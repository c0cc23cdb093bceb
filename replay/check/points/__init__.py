# pyright: strict
"""Trials of an op, one subject per module: each module creates its trials and judges them."""
