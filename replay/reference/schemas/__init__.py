"""Tables of vendors' operator schemas, read by `opreplay.replay.reference.vendor_schemas`."""
