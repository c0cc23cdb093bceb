# pyright: strict
"""What tile programs are written in: memories and tiles, the instructions on them, and what records them."""
