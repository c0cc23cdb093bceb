# pyright: strict
"""How lengths, indices, pages and experts are drawn; several rules share them."""
