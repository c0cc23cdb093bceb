# pyright: strict
"""One step of several ranks: their graphs, joined at collectives."""
