"""From a trace to a plan, from a plan to measured and simulated results."""
