# pyright: strict
"""Builds a plan without a profile: runs the user's Python code once on tensors without memory."""
