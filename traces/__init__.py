"""Read profile files; no torch."""
