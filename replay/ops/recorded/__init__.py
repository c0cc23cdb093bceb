# pyright: strict
"""Count the operations and bytes of recorded calls, and compare them with the peak rates of the recorded device."""
