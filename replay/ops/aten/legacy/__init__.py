# pyright: strict
"""Ops of torch 1.8 to 1.13 that later versions of torch removed."""
