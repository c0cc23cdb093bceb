# pyright: strict
"""Timeline of a step: the trace's execution graph, rescheduled with changed durations. Prints nothing."""
