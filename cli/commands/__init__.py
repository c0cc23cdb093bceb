# pyright: strict
"""One file per command: parse options, call one library function, print."""
