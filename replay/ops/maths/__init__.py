# pyright: strict
"""Mathematics of vendor ops; no ops are declared here."""
