# pyright: strict
"""Ops of a trace inside the tests of other projects."""
