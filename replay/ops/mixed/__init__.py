# pyright: strict
"""Ops of several families whose references share a file."""
