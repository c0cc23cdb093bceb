# pyright: strict
"""Changes that shorten a step most. Each change was tried; the results are ranked by their gain."""

from __future__ import annotations

from typing import Literal

import msgspec

from opreplay.traces.times.doubts import Doubts

AdviceKind = Literal["cudagraph", "python", "overlap", "fusion", "op", "dtype", "copies"]
Certainty = Literal["high", "medium", "low"]


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a step, and its gain if nothing else changes. Gains of several changes overlap, so they do not add
    up. Times are in µs.
    """

    kind: AdviceKind
    what: str
    """The change, as the subject of a sentence: "overlapping communication with computing"."""
    why: str
    """The reason for the gain: "the GPU waits for the host"."""
    gain_us: float
    """Reduction of the step's time."""
    low_us: float
    high_us: float
    """Upper end of the range of the time saved; `low_us` is the lower end.

    The range has two causes: dependencies between tasks may or may not exist, and the change may turn out better or
    worse.
    """
    share: float
    """The gain as a share of the step's time."""
    certainty: Certainty
    basis: str
    """The condition under which the gain holds."""
    module: str = ""
    """Path of the `nn.Module` with most of the time that changes; "" if the trace names no module."""
    function: str = ""
    """The Python function with most of the time that changes: "modeling_qwen2.py(150): forward"."""
    change: str = ""
    """The change, written as an argument of `opreplay timeline --what-if`; "" if that is not possible."""
    command: str = ""
    """Command that runs only the op to be changed; "" if the change does not concern one op."""


class AdviceList(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of a step, largest gain first, without those that gain less than 1 % of the step."""

    step_us: float
    marked: bool
    """Whether the trace marks steps; if not, `step_us` is the length of the whole trace."""
    tried: int
    """Number of changes whose gain was computed."""
    items: tuple[Advice, ...]
    doubts: Doubts = Doubts()
    """Reasons why the recorded times are unusable; empty if they are usable. If there is any reason, no change was
    tried.
    """
    on_host: bool = False
    """Whether the step ran on the host alone. If so, only Python functions and ranges that run no op are considered."""
