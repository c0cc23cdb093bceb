# pyright: strict
"""Users' code that defines how ops are called and what runs them."""
