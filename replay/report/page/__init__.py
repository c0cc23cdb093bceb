# pyright: strict
"""One HTML file that works offline: what any command found, as a page to send."""
