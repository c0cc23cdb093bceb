# pyright: strict
"""Collectives: their kinds, the bytes they move, and how they map to fewer ranks. Does not import torch."""
