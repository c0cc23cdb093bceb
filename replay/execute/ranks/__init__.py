# pyright: strict
"""Collectives on real process groups: the processes that are the ranks, and the code that starts, feeds and ends
them.
"""
