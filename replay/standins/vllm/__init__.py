# pyright: strict
"""Stand-ins for vLLM's ops."""
