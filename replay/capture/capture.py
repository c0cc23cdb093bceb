# pyright: strict
"""Implements `opreplay.capture` and the capture command: converts a step to a plan."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec

from opreplay.replay.capture.ranks import fake_ranks
from opreplay.replay.capture.record import Make, plan_of_recording, record
from opreplay.replay.capture.step import Step, called_step, step_of
from opreplay.replay.capture.target import Target
from opreplay.replay.ir.captured import CaptureOptions, Check, LikeDevice, Via
from opreplay.replay.ir.model import ReplayPlan
from opreplay.traces.errors import UsageError

DEFAULTS = CaptureOptions()


def capture(
    step: Callable[..., Any],
    *args: Any,
    via: Via = "dispatch",
    real: bool = False,
    optimizer: Any = None,
    loss: Callable[[Any], Any] | None = None,
    world_size: int | None = None,
    rank: int = 0,
    device: LikeDevice = "cpu",
    **kwargs: Any,
) -> ReplayPlan:
    """Return the plan of one run of a function, a module or a training step, without a profile.

    The step runs once, on fake tensors: nothing is allocated or computed, and `args` and the modules' parameters may be
    real or fake. Gradients, buffers and optimizers of a module are restored afterwards.

    Args:
        step: a function or a module, called with `args` and `kwargs`.
        args: positional arguments.
        via: "dispatch": each call as it reaches torch's dispatcher; "export": the graph of torch.export; "compile":
            the graphs that torch.compile passes to its backend, which runs on real tensors.
        real: run on real tensors, for a step that depends on tensor values.
        optimizer: with a module: an Optimizer, or a factory that takes the parameters, e.g. torch.optim.AdamW; trains
            one step.
        loss: with a module: computes the loss from its output.
        world_size: number of ranks of a simulated job, of which this process runs one, without communication.
        rank: the rank of this process.
        device: device whose torch defaults apply, where they are known to differ: on "cuda" and "npu", optimizers
            use foreach.
        kwargs: keyword arguments.

    Raises UsageError, with the user's line, for a step that cannot be captured.
    """
    training = {name: value for name, value in {"optimizer": optimizer, "loss": loss}.items() if value is not None}
    source = getattr(step, "__name__", type(step).__name__)
    options = CaptureOptions(via=via, real=real, world_size=world_size, rank=rank, device=device)
    return capture_made(lambda: called_step(step, args, kwargs, training), source=source, options=options)


def capture_made(
    make: Callable[[], Any],
    *,
    source: str,
    options: CaptureOptions = DEFAULTS,
    notes: tuple[str, ...] = (),
) -> ReplayPlan:
    """Return the plan of the step that `make()` returns.

    `make` is called with fake tensors enabled, unless the step runs on real tensors. `notes` are the assumptions made
    so far. Raises UsageError.
    """
    world_size, rank, via = options.world_size, options.rank, options.via
    job: dict[str, Any] = {} if world_size is None else {"world_size": world_size, "rank": rank}
    if options.decompose and via != "export":
        raise UsageError("decompose works only with --via export", hint="Add --via export.")
    real = options.real or via == "compile"
    with _job(world_size, rank):
        recording = record(
            step_maker(make),
            real=real,
            seed=options.seed,
            via=via,
            decompose=options.decompose,
            device=options.device,
        )
        return plan_of_recording(recording, source=source, via=via, real=real, notes=notes, **job)


def capture_target(target: Target, options: CaptureOptions = DEFAULTS) -> ReplayPlan:
    """Return the plan of the step that the command line names.

    Raises UsageError if the target is split over another number of ranks than the one in `options`.
    """
    if target.world_size is not None and options.world_size not in (None, target.world_size):
        raise UsageError(
            f"world_size is {options.world_size}, but the model is split over {target.world_size} ranks",
            hint="Remove --set world_size.",
        )
    options = msgspec.structs.replace(
        options, via=target.via or options.via, world_size=target.world_size or options.world_size
    )
    plan = capture_made(target.make, source=target.source, options=options, notes=target.notes)
    if not target.of_config or plan.capture is None:
        return plan
    return msgspec.structs.replace(
        plan, capture=msgspec.structs.replace(plan.capture, fused=False, stages=target.stages)
    )


def check_made(make: Callable[[], Any], plan: ReplayPlan, *, seed: int = 0, device: LikeDevice = "cpu") -> Check:
    """Check whether a captured plan computes the same results as the step that `make()` returns. Raises UsageError."""
    from opreplay.replay.capture.check import check

    assert plan.capture is not None
    if plan.capture.world_size > 1:
        raise UsageError(
            "--check needs values from other ranks",
            hint="Check without --set world_size; ranks do not exchange data here.",
        )
    return check(step_maker(make), plan, seed=seed, device=device)


def step_maker(make: Callable[[], Any]) -> Make:
    """Wrap `make` so that its result, the user's description of a step, is parsed into a Step."""

    def step() -> Step:
        description = make()
        return description if isinstance(description, Step) else step_of(description)

    return step


def _job(world_size: int | None, rank: int) -> AbstractContextManager[None]:
    if world_size is None:
        if rank:
            raise UsageError("rank is set, but world_size is not", hint="Add --set world_size=N.")
        return nullcontext()
    return fake_ranks(world_size, rank)
