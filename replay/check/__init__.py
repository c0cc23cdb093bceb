# pyright: strict
"""Checks that an op is right everywhere, and faster: its cases, the trials of each point, and the verdicts."""
