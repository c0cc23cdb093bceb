"""Runs compared."""
