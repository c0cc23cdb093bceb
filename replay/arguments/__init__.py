"""From a plan op to tensors."""
