# pyright: strict
"""Executors that run ops by torch."""
