# pyright: strict
"""Tables of vendors' operator schemas, read by `opreplay.replay.ops.declared`."""
