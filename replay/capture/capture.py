# pyright: strict
"""`opreplay.capture` and what the command does: a step to a plan."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec

from opreplay.replay.capture.ranks import fake_ranks
from opreplay.replay.capture.record import Make, plan_of_recording, record
from opreplay.replay.capture.step import Call, Step, step_of
from opreplay.replay.capture.target import Target
from opreplay.replay.ir.captured import Check, LikeDevice, Via
from opreplay.replay.ir.model import ReplayPlan
from opreplay.traces.errors import UsageError


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
    """The plan of one run of a function, a module, or a training step, without a profile.

    It runs once, on fake tensors: nothing is allocated or computed, and `args` and the modules' parameters may be real
    or fake. Gradients, buffers and optimizers of a module are afterwards what they were.

    Args:
        step: a function or a module, called with `args` and `kwargs`.
        args: positional arguments.
        via: "dispatch": each call as it reaches torch's dispatcher; "export": the graph of torch.export; "compile":
            the graphs that torch.compile hands its backend, which runs on real tensors.
        real: run on real tensors, for a step that depends on what tensors hold.
        optimizer: with a module: a torch.optim.Optimizer, or what makes one of the parameters; trains one step.
        loss: with a module: makes the loss of its output.
        world_size: ranks of a job that exchanges nothing, of which this process plays one.
        rank: which one.
        device: whose defaults torch takes where they are known to differ: optimizers take lists on "cuda" and "npu".
        kwargs: named arguments.

    Raises UsageError, with the user's line, for a step that cannot be run so.
    """
    options = {name: value for name, value in {"optimizer": optimizer, "loss": loss}.items() if value is not None}
    arguments: Any = args if not kwargs else Call(args=args, kwargs=kwargs)
    source = getattr(step, "__name__", type(step).__name__)
    description = (step, arguments, options) if options else (step, arguments)
    return capture_made(
        lambda: description, source=source, via=via, real=real, world_size=world_size, rank=rank, device=device
    )


def capture_made(
    make: Callable[[], Any],
    *,
    source: str,
    via: Via = "dispatch",
    decompose: bool = False,
    real: bool = False,
    seed: int = 0,
    world_size: int | None = None,
    rank: int = 0,
    notes: tuple[str, ...] = (),
    device: LikeDevice = "cpu",
) -> ReplayPlan:
    """The plan of the step that `make()` gives, which is called where fake tensors are made; `seed` is for real ones.

    `notes` say what was assumed. Raises UsageError.
    """
    job: dict[str, Any] = {} if world_size is None else {"world_size": world_size, "rank": rank}
    if decompose and via != "export":
        raise UsageError("decompose is for graphs of torch.export", hint="Use it with --via export.")
    real = real or via == "compile"
    with _job(world_size, rank):
        recording = record(step_maker(make), real=real, seed=seed, via=via, decompose=decompose, device=device)
        return plan_of_recording(recording, source=source, via=via, real=real, notes=notes, **job)


def capture_target(
    target: Target,
    *,
    via: Via = "dispatch",
    decompose: bool = False,
    real: bool = False,
    seed: int = 0,
    world_size: int | None = None,
    rank: int = 0,
    device: LikeDevice = "cpu",
) -> ReplayPlan:
    """The plan of what the command line names. Raises UsageError for ranks other than those that it is spread over."""
    if target.world_size is not None and world_size not in (None, target.world_size):
        raise UsageError(
            f"world_size={world_size} and a model spread over {target.world_size}", hint="Leave --set world_size out."
        )
    ranks = target.world_size or world_size
    plan = capture_made(
        target.make,
        source=target.source,
        via=target.via or via,
        decompose=decompose,
        real=real,
        seed=seed,
        world_size=ranks,
        rank=rank,
        notes=target.notes,
        device=device,
    )
    if not target.of_config or plan.capture is None:
        return plan
    return msgspec.structs.replace(plan, capture=msgspec.structs.replace(plan.capture, fused=False))


def check_made(make: Callable[[], Any], plan: ReplayPlan, *, seed: int = 0, device: LikeDevice = "cpu") -> Check:
    """Whether a captured plan computes what the step that `make()` gives computes. Raises UsageError."""
    from opreplay.replay.capture.check import check

    assert plan.capture is not None
    if plan.capture.world_size > 1:
        raise UsageError(
            "--check needs the values that other ranks send",
            hint="Check without --set world_size; ranks exchange nothing.",
        )
    return check(step_maker(make), plan, seed=seed, device=device)


def step_maker(make: Callable[[], Any]) -> Make:
    """`make`, with what it gives understood."""

    def step() -> Step:
        description = make()
        return description if isinstance(description, Step) else step_of(description)

    return step


def _job(world_size: int | None, rank: int) -> AbstractContextManager[None]:
    if world_size is None:
        if rank:
            raise UsageError("rank without world_size", hint="Say of how many: --set world_size=N.")
        return nullcontext()
    return fake_ranks(world_size, rank)
