# pyright: strict
"""Users' code that says how ops are called and what runs them."""
