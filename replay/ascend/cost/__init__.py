# pyright: strict
"""Cost terms of kernel families: count the work of a kernel and predict how long the cores take for it."""
