# pyright: strict
"""The order of work from a trace to results: opened, planned, predicted, measured; each step told as an event."""
