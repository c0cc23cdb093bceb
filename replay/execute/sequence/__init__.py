# pyright: strict
"""Replay the ops of one recorded step in order, with tensor lifetimes derived from the step."""
