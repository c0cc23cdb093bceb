# pyright: strict
"""Run many traces as one job."""
