# pyright: strict
"""Checks whether an op is correct for all kinds of input and faster than its reference.

A check consists of points (properties to check). Each point has trials: calls of the op, each with a verdict.
"""
