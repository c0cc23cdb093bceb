"""Fits the constants of the simulated devices that ship to public measurements, and says how far they are off."""
