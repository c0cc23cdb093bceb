# pyright: strict
"""Collectives on real process groups: processes that are the ranks, and who starts, feeds and ends them."""
