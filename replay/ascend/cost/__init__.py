# pyright: strict
"""Cost terms of kernel families: how work is counted, and how long the cores take for it."""
