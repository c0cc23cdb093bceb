"""Many traces as one job."""
