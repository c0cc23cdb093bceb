# pyright: strict
"""Whether an op is right, everywhere, and faster: its cases, what is tried on each, and the verdicts."""
