# pyright: strict
"""Finds the collectives of a trace and their ranks, and adds them to a plan as ops."""
