# pyright: strict
"""Draw lengths, indices, pages and experts for several rules."""
