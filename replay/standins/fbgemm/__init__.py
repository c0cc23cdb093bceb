# pyright: strict
"""Stand-ins for fbgemm's ops."""
