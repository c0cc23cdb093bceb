# pyright: strict
"""Runs the stages of a job in order: open, plan, predict, measure; each step is an event."""
