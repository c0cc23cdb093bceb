# pyright: strict
"""The data types shared by all other packages; nothing here imports torch."""
