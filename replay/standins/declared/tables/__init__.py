# pyright: strict
"""Tables of vendors' operator schemas, read by `opreplay.replay.standins.declared.schemas`."""
