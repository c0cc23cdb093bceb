# pyright: strict
"""Count the work that a call's argument values cause, and its maximum for the call's shapes; defines no ops."""
