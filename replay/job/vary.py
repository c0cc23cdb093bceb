"""Capture a step in several sizes, and predict each size on devices.

The step is either a model from a config file with several batches and contexts, or what a user's function returns when
it is called with the sizes.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ascend.simulate.step import Step, inversions
from opreplay.replay.capture.capture import DEFAULTS, capture_target
from opreplay.replay.capture.config_file import PREFIX
from opreplay.replay.capture.from_config import Shape, has_context
from opreplay.replay.capture.sizes import check_sizes
from opreplay.replay.capture.target import target_of
from opreplay.replay.ir.captured import CaptureOptions
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.job.job import Job
from opreplay.replay.job.settings import Settings
from opreplay.replay.timeline.served import ServedStep, ServedSteps, served
from opreplay.replay.timeline.sized import SizedStep, SizedSteps, sized
from opreplay.traces.errors import UsageError

Size = TypeVar("Size")
Row = TypeVar("Row")

Tell = Callable[[int, int, str], None]
"""(number of finished sizes, total number of sizes, name of the next size)."""


def ignore_progress(done: int, total: int, size: str) -> None:
    """Progress callback that does nothing."""


def vary_config(
    target: str,
    shape: Mapping[str, Any],
    sizes: Mapping[str, Sequence[int]],
    devices: Sequence[DeviceProfile],
    form: Callable[[ReplayPlan], ReplayPlan],
    *,
    weights: str | None = None,
    tell: Tell = ignore_progress,
    options: CaptureOptions = DEFAULTS,
) -> ServedSteps | SizedSteps:
    """Predict the model of a config file on each device in each size.

    `form` converts each captured plan before it is predicted. `shape` has the other fields of `from_config.Shape`.
    `weights` is the quantisation of the weights. The results are per token or, for a model that reads no text, per
    step. Raises UsageError for sizes not in `VARIED`, and for a size that `shape` already sets.
    """
    check_sizes(target, shape, sizes)

    def captured(fields: dict[str, Any]) -> ReplayPlan:
        return form(capture_target(target_of(target, fields), options))

    def rows_of(fields: dict[str, Any], plan: ReplayPlan, steps: list[Step]) -> list[ServedStep]:
        wanted = Shape(**fields)
        return served(
            plan,
            steps,
            batch=wanted.batch,
            context=wanted.context,
            decodes=wanted.phase == "decode",
            stages=wanted.pipeline_parallel,
            replicas=wanted.expert_parallel if wanted.spreads else 1,
        )

    wanted = {_name(chosen): {**shape, **chosen} for chosen in _combined(sizes)}
    first = Shape(**next(iter(wanted.values())))
    path = target.removeprefix(PREFIX)
    if first.phase == "prefill" and not has_context(path):

        def sized_rows(fields: dict[str, Any], plan: ReplayPlan, steps: list[Step]) -> list[SizedStep]:
            return sized(plan, steps, {name: fields[name] for name in sizes})

        rows, notes = _rows(wanted, captured, sized_rows, devices, tell)
        ways = [first.phase, first.dtype, *([f"weights {weights}"] if weights else [])]
        return SizedSteps(source=f"{Path(path).name} ({', '.join(ways)})", rows=tuple(rows), notes=notes)
    rows, notes = _rows(wanted, captured, rows_of, devices, tell)
    return ServedSteps(
        model=Path(path).name,
        phase=first.phase,
        dtype=first.dtype,
        weights=weights,
        tensor_parallel=first.tensor_parallel,
        pipeline_parallel=first.pipeline_parallel,
        expert_parallel=first.expert_parallel,
        rows=tuple(rows),
        notes=notes,
    )


def vary_file(
    target: str,
    shape: Mapping[str, Any],
    sizes: Mapping[str, Sequence[int]],
    devices: Sequence[DeviceProfile],
    form: Callable[[ReplayPlan], ReplayPlan],
    *,
    tell: Tell = ignore_progress,
    options: CaptureOptions = DEFAULTS,
) -> SizedSteps:
    """Predict the step of "FILE.py:make" on each device. `make` is called with each combination of sizes.

    Raises UsageError for sizes that the function does not accept, and what `target_of` raises.
    """
    named = target_of(target, shape)
    signature = inspect.signature(named.make)
    try:
        signature.bind(**dict.fromkeys(sizes, 1))
    except TypeError as error:
        names = ", ".join(signature.parameters)
        hint = f"The function takes {names}." if names else f"Add the parameters: def make({', '.join(sizes)})."
        raise UsageError(f"--vary: {named.source}: {error}", hint=hint) from error

    def captured(chosen: dict[str, int]) -> ReplayPlan:
        return form(capture_target(msgspec.structs.replace(named, make=partial(named.make, **chosen)), options))

    wanted = {_name(chosen): chosen for chosen in _combined(sizes)}
    rows, notes = _rows(wanted, captured, lambda chosen, plan, steps: sized(plan, steps, chosen), devices, tell)
    return SizedSteps(source=named.source, rows=tuple(rows), notes=notes)


def _name(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size:,}" for name, size in sizes.items())


def _combined(sizes: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Return all combinations of the sizes' values."""
    return [dict(zip(sizes, values, strict=True)) for values in itertools.product(*sizes.values())]


def _rows(
    wanted: Mapping[str, Size],
    captured: Callable[[Size], ReplayPlan],
    rows_of: Callable[[Size, ReplayPlan, list[Step]], list[Row]],
    devices: Sequence[DeviceProfile],
    tell: Tell,
) -> tuple[list[Row], tuple[str, ...]]:
    """Return (one row per size and device, assumptions that hold for all rows)."""
    rows: list[Row] = []
    notes: dict[str, None] = {}
    inverted: dict[tuple[str, str], str] = {}
    for done, (name, size) in enumerate(wanted.items()):
        tell(done, len(wanted), name)
        plan = captured(size)
        notes.update(dict.fromkeys(plan.capture.notes if plan.capture is not None else ()))
        steps = _predicted(plan, devices)
        rows += rows_of(size, plan, steps)
        for pair in inversions(steps):
            inverted.setdefault((pair.smaller, pair.larger), str(pair))  # one size tells of all
    return rows, (*notes, *inverted.values())


def _predicted(plan: ReplayPlan, devices: Sequence[DeviceProfile]) -> list[Step]:
    """Predict the step on each device; each call finds in L2 what earlier calls left there."""
    job = Job(plan, settings=Settings(l2="sequence"), devices={device.name: device for device in devices})
    job.plan = plan  # captured plans are complete: nothing is left to resolve
    return job.steps()
