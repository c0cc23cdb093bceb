"""Stand-ins for fbgemm's ops."""
