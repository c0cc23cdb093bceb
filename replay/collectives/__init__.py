# pyright: strict
"""Collectives: which ones exist, how many bytes they move, and how they map to fewer ranks. Does not import torch."""
