# pyright: strict
"""What a collective is, how many bytes it moves, and what becomes of it on fewer ranks; no torch, no device."""
