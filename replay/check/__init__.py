# pyright: strict
"""Checks that an op is correct for all kinds of input, and faster than its reference: cases, trials of each point,
verdicts.
"""
