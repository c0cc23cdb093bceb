# pyright: strict
"""Many traces as one job."""
