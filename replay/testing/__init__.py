# pyright: strict
"""Use the ops of a trace in the tests of other projects."""
