# pyright: strict
"""What a run came to: records, files, summaries."""
