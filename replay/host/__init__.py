# pyright: strict
"""This machine: memory, processes, locks, versions."""
