"""Back-ends that run ops."""
