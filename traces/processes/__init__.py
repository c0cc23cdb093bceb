"""Which process each event of a merged file belongs to, and ids that are unique across its processes."""
