# pyright: strict
"""Mixture of experts: routing, expert matrix products, bookkeeping."""
