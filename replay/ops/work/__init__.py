# pyright: strict
"""Counting of the work that a call's argument values cause, and of the maximum that the call's shapes allow.

This package defines no ops.
"""
