# pyright: strict
"""Tables of vendor operator schemas, read by `opreplay.replay.ops.declared`."""
