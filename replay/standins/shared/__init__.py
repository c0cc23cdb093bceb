# pyright: strict
"""Stand-ins for ops that several libraries have under several names."""
