# pyright: strict
"""One step in every output format: text, timelines, an HTML page."""
