# pyright: strict
"""A recorded name to a call."""
