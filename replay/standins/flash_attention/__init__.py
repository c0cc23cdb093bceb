# pyright: strict
"""Stand-ins for the builds of flash-attention."""
