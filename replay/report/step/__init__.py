# pyright: strict
"""One step in every output format: text, timelines, a page."""
