# pyright: strict
"""What an op is, said once: a folder a family, `table` over all of them; see there."""
