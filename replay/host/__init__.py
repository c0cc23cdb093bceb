"""This machine: memory, processes, locks, versions."""
