# pyright: strict
"""Stand-ins for SGLang's ops."""
