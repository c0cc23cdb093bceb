"""Exams of the simulated Ascend device as a whole: measured tables, whole steps, physical bounds and invariants."""
