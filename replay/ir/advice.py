# pyright: strict
"""What to change first in a step: changes that were tried, ranked by what they gain."""

from __future__ import annotations

from typing import Literal

import msgspec

from opreplay.traces.times.doubts import Doubts

AdviceKind = Literal["cudagraph", "python", "overlap", "fusion", "op", "dtype", "copies"]
Certainty = Literal["high", "medium", "low"]


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a step and what it gains, alone: gains of several changes overlap. Times in µs."""

    kind: AdviceKind
    what: str
    """The change, as the subject of a sentence: "overlapping communication with computing"."""
    why: str
    """What makes it gain: "the GPU waits for the host"."""
    gain_us: float
    """Of the step."""
    low_us: float
    high_us: float
    """Range of the gain: with and without dependencies that may exist, and for better and worse results of the
    change."""
    share: float
    """The gain as a share of the step."""
    certainty: Certainty
    basis: str
    """What has to be true for it."""
    module: str = ""
    """Where in the code: the `nn.Module` with most of the changed time; "" where the trace names none."""
    function: str = ""
    """The same of the Python function: "modeling_qwen2.py(150): forward"."""
    change: str = ""
    """The same change for `opreplay timeline --what-if`; "" where none can be typed."""
    command: str = ""
    """Runs the op alone; "" for other changes."""


class AdviceList(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of a step, largest gain first; those that gain less than 1 % of it are left out."""

    step_us: float
    marked: bool
    """False: the trace marks no steps, and `step_us` is the length of all of it."""
    tried: int
    """Changes whose gain was computed."""
    items: tuple[Advice, ...]
    doubts: Doubts = Doubts()
    """Why times are no timings, so that nothing was tried."""
