"""One reader per kind of profile file."""
