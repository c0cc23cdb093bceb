"""Stand-ins for vLLM's ops."""
