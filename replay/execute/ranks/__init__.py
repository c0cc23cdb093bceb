# pyright: strict
"""Collectives on real process groups: the processes of the ranks, and the code that starts, controls and ends them."""
