"""The terminal: console, progress, signals."""
