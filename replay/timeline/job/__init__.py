# pyright: strict
"""One step of several ranks: their graphs put together where collectives hold them together."""
