# pyright: strict
"""Matrix products: dense, quantised, packed, grouped, of adapters."""
