# pyright: strict
"""One command a file: parse, call one library function, print."""
