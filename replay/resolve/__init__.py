"""A recorded name to a call."""
