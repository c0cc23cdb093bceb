# pyright: strict
"""The collectives of a trace: which there are, among how many ranks, and as ops of a plan."""
