# pyright: strict
"""The step: execution graph of a trace, re-timed with other durations; prints nothing."""
