# pyright: strict
"""How much work the values of a call's arguments cause, beside what its shapes allow; owns no value and no op."""
