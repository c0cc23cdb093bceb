# pyright: strict
"""Processes that run ops."""
