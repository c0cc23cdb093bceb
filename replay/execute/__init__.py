"""Ops run and timed."""
