# pyright: strict
"""Calls that somebody writes down, in the notation of reports, to ops that can be called."""
