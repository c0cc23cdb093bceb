"""The simulated Ascend device; no torch."""
