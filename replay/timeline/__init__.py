# pyright: strict
"""The timeline of a step: the execution graph of a trace, scheduled again with other durations; prints nothing."""
