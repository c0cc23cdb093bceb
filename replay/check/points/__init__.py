# pyright: strict
"""Trials of an op: each module creates and judges the trials of one group of points (checked properties)."""
