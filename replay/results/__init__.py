# pyright: strict
"""The results of a run: records, files, summaries."""
