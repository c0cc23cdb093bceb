# pyright: strict
"""The calls of one recorded step, in order and linked."""
