# pyright: strict
"""Checks whether an op is correct for all kinds of input and faster than its reference. Each point (checked property)
has trials: calls of the op, each with a verdict.
"""
