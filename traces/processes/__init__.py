"""Find the process of each event in a merged file, and make ids unique across processes."""
