"""Fitting simulated devices to measurements."""
