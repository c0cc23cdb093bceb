# pyright: strict
"""Facts and resources of this machine: memory, processes, locks, versions."""
