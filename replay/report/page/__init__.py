# pyright: strict
"""One HTML file that works offline: the result of any command as a page to send."""
