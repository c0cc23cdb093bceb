# pyright: strict
"""Cost terms of kernel families: how work is counted and what it takes on the cores."""
