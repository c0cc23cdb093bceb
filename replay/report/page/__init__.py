# pyright: strict
"""The result of any command as one self-contained HTML file that works offline."""
