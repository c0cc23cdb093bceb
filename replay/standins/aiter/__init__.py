"""Stand-ins for aiter's ops."""
