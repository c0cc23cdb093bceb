# pyright: strict
"""Matrix products: dense, quantised, packed, grouped, and of LoRA adapters."""
