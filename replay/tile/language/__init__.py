# pyright: strict
"""The language of tile programs: memories and tiles, their instructions, and the recording of both."""
