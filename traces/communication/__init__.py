# pyright: strict
"""What a profile says of communication between processes: the metadata of its collectives, call by call."""
