# pyright: strict
"""Compute where the time of a trace goes: classes of work, modules, busy shares, rates."""
