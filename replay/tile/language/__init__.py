# pyright: strict
"""The language of tile programs: memories and tiles, their instructions, and how both are recorded."""
