"""Capture a step in several sizes, and predict each size on devices.

The step comes from a model's config file with several batches and contexts, or from a user's function. The function is
called with the sizes and returns the step.
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
from opreplay.replay.ascend.simulate.devices import ranks_without_dies
from opreplay.replay.ascend.simulate.step import Step, inversions
from opreplay.replay.capture.capture import DEFAULTS, capture_target
from opreplay.replay.capture.config_file import PREFIX
from opreplay.replay.capture.from_config import Shape, has_context
from opreplay.replay.capture.sizes import check_sizes
from opreplay.replay.capture.target import target_of
from opreplay.replay.ir.captured import CaptureOptions, step_notes
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.job.job import Job
from opreplay.replay.job.settings import Settings
from opreplay.replay.timeline.served import ServedStep, ServedSteps, served
from opreplay.replay.timeline.sized import SizedStep, SizedSteps, sized
from opreplay.traces.errors import InternalError, OpReplayError, UsageError

Size = TypeVar("Size")
Row = TypeVar("Row")

Stages = list[tuple[ReplayPlan, list[Step]]]
"""The plan of each pipeline stage, with its predictions by device; one for a step that is not split into stages."""

Tell = Callable[[int, int, str], None]
"""Progress callback: gets (number of finished sizes, number of all sizes, name of the next size)."""


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
    `weights` is the quantisation of the weights. The results are per token. For a model that reads no text, they are
    per step.

    Raises UsageError for sizes not in `VARIED`, and for a size that `shape` already sets.
    """
    check_sizes(target, shape, sizes)
    wanted = {_name(chosen): {**shape, **chosen} for chosen in _combined(sizes)}
    first = Shape(**next(iter(wanted.values())))
    path = target.removeprefix(PREFIX)
    is_sized = first.phase == "prefill" and not has_context(path)

    def captured(fields: dict[str, Any]) -> list[ReplayPlan]:
        ranks = _ranks_of_stages(Shape(**fields), options.rank)[: 1 if is_sized else None]
        return [
            form(capture_target(target_of(target, fields), msgspec.structs.replace(options, rank=rank)))
            for rank in ranks
        ]

    def rows_of(fields: dict[str, Any], stages: Stages) -> list[ServedStep]:
        wanted = Shape(**fields)
        return served(
            stages,
            batch=wanted.batch,
            context=wanted.context,
            decodes=wanted.phase == "decode",
            replicas=wanted.expert_parallel if wanted.spreads else 1,
        )

    if is_sized:

        def sized_rows(fields: dict[str, Any], stages: Stages) -> list[SizedStep]:
            return sized(*stages[0], {name: fields[name] for name in sizes})

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

    def captured(chosen: dict[str, int]) -> list[ReplayPlan]:
        return [form(capture_target(msgspec.structs.replace(named, make=partial(named.make, **chosen)), options))]

    wanted = {_name(chosen): chosen for chosen in _combined(sizes)}
    rows, notes = _rows(wanted, captured, lambda chosen, stages: sized(*stages[0], chosen), devices, tell)
    return SizedSteps(source=named.source, rows=tuple(rows), notes=notes)


def _name(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size:,}" for name, size in sizes.items())


def _combined(sizes: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Return all combinations of the sizes' values."""
    return [dict(zip(sizes, values, strict=True)) for values in itertools.product(*sizes.values())]


def _rows(
    wanted: Mapping[str, Size],
    captured: Callable[[Size], list[ReplayPlan]],
    rows_of: Callable[[Size, Stages], list[Row]],
    devices: Sequence[DeviceProfile],
    tell: Tell,
) -> tuple[list[Row], tuple[str, ...]]:
    """Return (one row per size and device, assumptions that hold for all rows).

    A size that cannot be captured gets a note instead of rows. Raises its error if no size has rows.
    """
    rows: list[Row] = []
    notes: dict[str, None] = {}
    refused: dict[str, OpReplayError] = {}
    inverted: dict[tuple[str, str], str] = {}
    for done, (name, size) in enumerate(wanted.items()):
        tell(done, len(wanted), name)
        try:
            plans = captured(size)
        except InternalError:
            raise
        except OpReplayError as error:
            refused[name] = error
            continue
        captures = [plan.capture for plan in plans if plan.capture is not None]
        notes.update(dict.fromkeys(step_notes(captures) if captures else ()))
        for small in (ranks_without_dies(plan.ops, devices) for plan in plans):
            notes.update({small: None} if small is not None else {})
        stages = [(plan, _predicted(plan, devices)) for plan in plans]
        rows += rows_of(size, stages)
        for pair in (pair for _, steps in stages for pair in inversions(steps)):
            inverted.setdefault((pair.smaller, pair.larger), str(pair))  # one size tells of all
    if refused and not rows:
        raise next(iter(refused.values()))
    without = (f"not predicted: {name}, because {error.problem}" for name, error in refused.items())
    return rows, (*without, *notes, *inverted.values())


def _ranks_of_stages(shape: Shape, rank: int) -> list[int]:
    """Return, for each pipeline stage, the rank that has the same position in its stage as `rank`."""
    if shape.pipeline_parallel == 1 or rank >= shape.ranks:  # the capture refuses a rank outside the job
        return [rank]
    tensor_rank = rank % shape.tensor_parallel
    return [stage * shape.tensor_parallel + tensor_rank for stage in range(shape.pipeline_parallel)]


def _predicted(plan: ReplayPlan, devices: Sequence[DeviceProfile]) -> list[Step]:
    """Predict the step on each device. Each call finds in the L2 cache what earlier calls left there."""
    job = Job(plan, settings=Settings(l2="sequence"), devices={device.name: device for device in devices})
    job.plan = plan  # captured plans are complete: nothing is left to resolve
    return job.steps()
