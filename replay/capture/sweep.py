"""Captures a step in several sizes and predicts each on devices.

The step is a model from a config file in several batches and contexts, or the result of a user's function called with
the sizes.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ascend.simulate.devices import simulate_plan
from opreplay.replay.ascend.simulate.step import Step, inversions
from opreplay.replay.capture.capture import capture_target
from opreplay.replay.capture.from_config import Shape
from opreplay.replay.capture.target import target_of
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.ir.notation import parse_sizes
from opreplay.replay.ops.work.expected import expected_contents
from opreplay.replay.timeline.served import ServedStep, served
from opreplay.replay.timeline.sized import SizedStep, sized
from opreplay.traces.errors import UsageError

Size = TypeVar("Size")
Row = TypeVar("Row")

VARIED = ("batch", "context")
HOW = "Write batch=1,8,32 or context=1k,8k."


def sizes_of(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Parse "batch=1,8" and "context=1k,8k" as numbers. Raises UsageError as `parse_sizes`, and for a value below 1."""
    sizes: dict[str, tuple[int, ...]] = {}
    for text in itertools.chain.from_iterable(text.split() for text in texts):
        name, values = parse_sizes(text)
        if min(values) < 1 or name in sizes:
            what = f"{name} is given twice" if name in sizes else f"{text!r} holds a size below 1"
            raise UsageError(what, hint=HOW)
        sizes[name] = values
    return sizes


def swept(
    target: str,
    shape: Mapping[str, Any],
    sizes: Mapping[str, Sequence[int]],
    devices: Sequence[DeviceProfile],
    form: Callable[[ReplayPlan], ReplayPlan],
    **options: Any,
) -> tuple[list[ServedStep], tuple[str, ...]]:
    """Return the step of each size on each device, in the `form` that is run, and the assumptions common to all.

    `shape` has the other fields of `from_config.Shape`, `options` are of `capture_target`. Raises UsageError for sizes
    not in `VARIED`, and for a size that `shape` already sets.
    """
    if other := next((name for name in sizes if name not in VARIED), None):
        raise UsageError(f"{other!r} is not a size of a config", hint=HOW)
    if twice := next((name for name in sizes if name in shape), None):
        raise UsageError(f"--{twice} is given together with --vary {twice}=...", hint="Remove one of them.")

    def captured(wanted: Shape) -> ReplayPlan:
        fields = {name: getattr(wanted, name) for name in Shape.__dataclass_fields__}
        return form(capture_target(target_of(target, fields), **options))

    def rows_of(wanted: Shape, plan: ReplayPlan, steps: list[Step]) -> list[ServedStep]:
        return served(
            plan,
            steps,
            batch=wanted.batch,
            context=wanted.context,
            decodes=wanted.phase == "decode",
            stages=wanted.pipeline_parallel,
            replicas=wanted.expert_parallel if wanted.spreads else 1,
        )

    return _rows([Shape(**{**shape, **chosen}) for chosen in _combined(sizes)], captured, rows_of, devices)


def swept_file(
    target: str,
    shape: Mapping[str, Any],
    sizes: Mapping[str, Sequence[int]],
    devices: Sequence[DeviceProfile],
    form: Callable[[ReplayPlan], ReplayPlan],
    **options: Any,
) -> tuple[list[SizedStep], tuple[str, ...]]:
    """Return each size on each device for the step of "FILE.py:make", called with the sizes by name, and the
    assumptions.

    `form` is the form that is run; `options` are of `capture_target`. Raises UsageError for sizes that the function
    does not accept, and as `target_of`.
    """
    named = target_of(target, shape)
    signature = inspect.signature(named.make)
    try:
        signature.bind(**dict.fromkeys(sizes, 1))
    except TypeError as error:
        names = ", ".join(signature.parameters)
        hint = f"It takes {names}." if names else f"Let it take them: def make({', '.join(sizes)})."
        raise UsageError(f"--vary: {named.source}: {error}", hint=hint) from error

    def captured(chosen: dict[str, int]) -> ReplayPlan:
        return form(capture_target(replace(named, make=partial(named.make, **chosen)), **options))

    return _rows(_combined(sizes), captured, lambda chosen, plan, steps: sized(plan, steps, chosen), devices)


def _combined(sizes: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Return all combinations of sizes."""
    return [dict(zip(sizes, values, strict=True)) for values in itertools.product(*sizes.values())]


def _rows(
    wanted: Sequence[Size],
    captured: Callable[[Size], ReplayPlan],
    rows_of: Callable[[Size, ReplayPlan, list[Step]], list[Row]],
    devices: Sequence[DeviceProfile],
) -> tuple[list[Row], tuple[str, ...]]:
    """Return the rows of the step in each size on the devices, and the assumptions common to all."""
    rows: list[Row] = []
    notes: dict[str, None] = {}
    inverted: dict[tuple[str, str], str] = {}
    for size in wanted:
        plan = captured(size)
        notes.update(dict.fromkeys(plan.capture.notes if plan.capture is not None else ()))
        steps = simulate_plan(plan, devices, expected_contents())
        rows += rows_of(size, plan, steps)
        for pair in inversions(steps):
            inverted.setdefault((pair.smaller, pair.larger), str(pair))  # one size tells of all
    return rows, (*notes, *inverted.values())
