# pyright: strict
"""Runs the stages of a job in order: open, plan, predict, measure. Each step yields an event."""
