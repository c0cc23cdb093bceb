# pyright: strict
"""Executors that run ops through torch."""
