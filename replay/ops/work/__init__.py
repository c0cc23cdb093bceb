# pyright: strict
"""Count the work that a call's argument values cause, compared with the maximum for its shapes; defines no ops."""
