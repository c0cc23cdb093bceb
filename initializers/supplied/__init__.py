"""Tensors that the user supplies."""
