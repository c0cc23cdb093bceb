# pyright: strict
"""Resolves calls that a user writes, in the notation of reports, to callable ops."""
