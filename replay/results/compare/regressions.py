# pyright: strict
"""Conditions on which a build can fail: `slower>5%`, `total>3%`, `step>3%`, `lost>0`, `unclear>50%`, `power>20%`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from opreplay.replay.results.compare.judge import Comparison, OpComparison, Total
from opreplay.traces.errors import UsageError
from opreplay.traces.names import plural

_CONDITION = re.compile(r"\s*(slower|total|step|lost|unclear|power)\s*>\s*([0-9]+(?:\.[0-9]+)?)\s*(%?)\s*")

INPUT_CHARS = 80
"""Maximum length of an op's inputs in a line, in characters."""


class StepRatio(msgspec.Struct, frozen=True, kw_only=True):
    """Change of the step between two traces."""

    ratio: float
    is_clear: bool
    """Whether the change is larger than the variation between steps."""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """A condition that must not be true."""

    what: Literal["slower", "total", "step", "lost", "unclear", "power"]
    """What the condition tests.

    "slower": whether an op became slower. "total": the ratio of all ops combined. "step": the ratio of the steps of two
    traces. "lost": the number of ops that are no longer replayed. "unclear": the share of ops that could not be judged.
    "power": the smallest change that would have been found.
    """
    limit: float
    """Limit as a share, or as a number of ops for "lost"."""

    def __str__(self) -> str:
        return f"{self.what}>{self.limit:g}" if self.what == "lost" else f"{self.what}>{100 * self.limit:g}%"

    def violations(self, comparison: Comparison, step: StepRatio | None = None) -> list[str]:
        """Return one line for each violation; nothing if there is none."""
        if self.untested(comparison, step):
            return []
        lost, unclear, power = len(comparison.of("lost")), comparison.unclear_share, comparison.power or 0.0
        measures = {
            "lost": (lost, f"no longer replayed: {plural(lost, 'op')}"),
            "unclear": (unclear, f"{100 * unclear:.0f} % of the ops cannot be judged"),
            "power": (power, f"in most ops, only changes of {100 * power:.0f} % or more could be detected"),
        }
        if self.what == "slower":
            slower = ((op, op.ratio or 0.0) for op in comparison.of("slower"))
            lines = [f"{_which(op)} {ratio:.3f}×" for op, ratio in slower if ratio > 1.0 + self.limit]
        elif self.what == "total":
            lines = _total_violations(comparison, 1.0 + self.limit)
        elif self.what == "step":
            is_longer = step is not None and step.is_clear and step.ratio > 1.0 + self.limit
            lines = [f"the step takes {step.ratio:.3f}× as long"] if step is not None and is_longer else []
        else:
            value, text = measures[self.what]
            lines = [text] if value > self.limit else []
        return [f"{self}: {line}" for line in lines]

    def untested(self, comparison: Comparison, step: StepRatio | None = None) -> str:
        """Return why the condition cannot be tested; "" if it can."""
        if self.what == "slower" and not comparison.of("slower", "faster", "same"):
            return "no op could be judged"
        if self.what == "total":
            return comparison.why_total_unknown
        if self.what == "step":
            return "" if step is not None else "this needs two traces that mark steps, with known times"
        unknown = self.what == "power" and comparison.power is None
        return "the smallest detectable change is unknown" if unknown else ""


def _total_violations(comparison: Comparison, limit: float) -> list[str]:
    """Return a line if a ratio of totals exceeds `limit`: that of common ops, or that including ops of one side."""
    if comparison.whole is not None:
        return [f"{comparison.whole:.3f}× of all recorded time"] if comparison.whole > limit else []
    with_alone, new = comparison.with_alone, len(comparison.of("only after"))
    if new and with_alone is not None and with_alone > limit:
        return [f"{with_alone:.3f}× with the ops on one side only ({new} only after)"]
    return [] if comparison.total is None else _ratio_violations(comparison.total, limit)


def _ratio_violations(total: Total, limit: float) -> list[str]:
    if total.ratio <= limit or (total.low is not None and total.low <= 1.0):
        return []
    interval = "" if total.low is None or total.high is None else f" ({total.low:.3f} to {total.high:.3f})"
    return [f"{total.ratio:.3f}×{interval}"]


def _which(op: OpComparison) -> str:
    """Return text that distinguishes ops of one name, such as "aten::linear (eef3d5cb) [4,128,512]·[2816,512]"."""
    inputs = op.inputs if len(op.inputs) <= INPUT_CHARS else f"{op.inputs[: INPUT_CHARS - 1]}…"
    return f"{op.name} ({op.id[:8]})" + (f" {inputs}" if inputs else "")


def violations(conditions: Sequence[Condition], comparison: Comparison, step: StepRatio | None = None) -> list[str]:
    """Return the violations of all conditions, one line each."""
    return [line for condition in conditions for line in condition.violations(comparison, step)]


def untested_conditions(
    conditions: Sequence[Condition], comparison: Comparison, step: StepRatio | None = None
) -> list[str]:
    """Return a line for each thing that could not be tested, with the reason. A check with such a line does not pass.

    Reasons are: a condition has no evidence for or against it, the runs have no op in common, or a run was cut short.
    """
    of_ops = [condition for condition in conditions if condition.what != "step"]
    if of_ops and not any(op.ratio is not None for op in comparison.ops):
        return ["no op was measured in both runs"]
    # Whether all that was replayed before still is can be told of any first run.
    needed = (any(condition.what != "lost" for condition in conditions), bool(conditions))
    short = [
        f"the {which} run did not reach {missing} of its ops, so no condition was checked on them"
        for which, missing, asked in zip(("first", "second"), comparison.unreached, needed, strict=True)
        if missing and asked
    ]
    return [
        *(
            f"{condition} could not be tested: {why}"
            for condition in conditions
            if (why := condition.untested(comparison, step))
        ),
        *short,
    ]


def warnings_of(conditions: Sequence[Condition], comparison: Comparison) -> list[str]:
    """Return warnings about conditions that are stricter than the scatter of the ops in these runs allows."""
    if not conditions or comparison.applied <= comparison.threshold:
        return []
    scatter = f"{100 * comparison.applied:.0f} % cannot be detected, because the runs vary as much"
    return [f"changes below {scatter} (to treat this as a failure, use --fail-if 'power>20%')"]


def parse_condition(text: str) -> Condition:
    """Parse a condition such as "slower>5%". Raises UsageError for anything else."""
    match = _CONDITION.fullmatch(text)
    if match is None or (match[1] == "lost") == bool(match[3]):
        raise UsageError(
            f"{text!r} is not a condition",
            hint="Write it like 'slower>5%', 'total>3%', 'step>3%', 'lost>0', 'unclear>50%' or 'power>20%'.",
        )
    what: Literal["slower", "total", "step", "lost", "unclear", "power"] = match[1]  # type: ignore[assignment]
    return Condition(what=what, limit=float(match[2]) * (0.01 if match[3] else 1.0))
