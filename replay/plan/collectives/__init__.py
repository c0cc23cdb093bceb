# pyright: strict
"""The collectives of a trace: which there are, their ranks, and how they become ops of a plan."""
