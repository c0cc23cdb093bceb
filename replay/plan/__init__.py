"""From a trace to a plan."""
