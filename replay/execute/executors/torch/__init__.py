"""Executors that run ops by torch."""
