# pyright: strict
"""Recorded facts about each op, before any op is resolved."""
