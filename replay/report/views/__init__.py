# pyright: strict
"""Views (all output formats) of calibrations, comparisons, devices, plans, traces, validations and other results."""
