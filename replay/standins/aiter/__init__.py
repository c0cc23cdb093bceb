# pyright: strict
"""Stand-ins for aiter's ops."""
