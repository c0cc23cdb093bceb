# pyright: strict
"""Lowering of whole layers: attention, mixture of experts, recurrent layers."""
