# pyright: strict
"""What a trace lacks, guessed from what it has."""
