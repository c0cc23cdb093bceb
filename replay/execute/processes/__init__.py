"""Processes that run ops."""
