# pyright: strict
"""Mixture of experts: routing, products of experts, bookkeeping."""
