# pyright: strict
"""Back-ends that run ops."""
