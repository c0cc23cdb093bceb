# pyright: strict
"""A plan without a profile: the user's Python, run once on tensors without memory."""
