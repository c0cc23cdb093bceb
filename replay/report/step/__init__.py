# pyright: strict
"""One step in every form: text, timelines, a page."""
