# pyright: strict
"""The values that everything else speaks of; nothing here imports torch."""
