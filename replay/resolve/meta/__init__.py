"""Calls on meta tensors."""
