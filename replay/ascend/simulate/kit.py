# pyright: strict
"""Selects the calls of a plan to measure on the real device within a time budget, and writes them to a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from opreplay.replay.ascend.cost.own_measurements import Estimate, choose
from opreplay.replay.ascend.devices.file import canonical_name, list_devices, load_device
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ascend.simulate.devices import simulate_plan
from opreplay.replay.ascend.simulate.measured import estimate_of
from opreplay.replay.ascend.simulate.op import simulate_op
from opreplay.replay.ascend.simulate.step import Step
from opreplay.replay.ascend.simulate.step_residency import PlannedStep
from opreplay.replay.ir.model import Reason, ReplayOp, ReplayPlan
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.ops.work.contents import ContentsOf
from opreplay.traces.errors import UsageError

if TYPE_CHECKING:  # these import torch
    from opreplay.initializers.registry import Registry
    from opreplay.replay.export.measure import Timed

LEAST_SHARE = 0.0005
"""Minimum share of the total's variance for a call to be worth measuring."""


class Kit(msgspec.Struct, frozen=True, kw_only=True):
    """A file that measures calls, and how much these measurements improve the prediction."""

    text: str
    calls: tuple[Timed, ...]
    """Calls to measure, most valuable first."""
    ops: int
    """Number of ops in the plan with a prediction."""
    share: float
    """Share of the predicted total's variance that measuring all calls removes."""
    estimated_s: float
    """Approximate time in seconds that running the file takes."""
    left_out: tuple[tuple[ReplayOp, Reason], ...]
    """Ops that have a prediction but cannot be called by the file, each with the reason."""


def make_kit(
    plan: ReplayPlan,
    device: DeviceProfile,
    contents: ContentsOf,
    registry: Registry,
    *,
    budget_s: float,
    seed: int = 0,
    memory_bytes: int,
) -> Kit:
    """Select the calls whose measurement narrows the band of a plan's predicted total most, within a budget of seconds.

    Raises UsageError if no call of the plan can be measured.
    """
    from opreplay.replay.export.measure import cost_s, file_text, left_out_lines, refusal

    (step,) = simulate_plan(PlannedStep(plan, contents), [device])
    ops = {op.id: op for op in plan.ops}
    timed = [part for part in step.ops if part.simulated.time_us > 0]
    refused: dict[str, Reason] = {
        part.id: reason for part in timed if (reason := refusal(ops[part.id], memory_bytes)) is not None
    }
    estimates = [estimate_of(ops[part.id], part.families_us, part.simulated) for part in timed]
    alone = [_alone_us(ops[part.id], device, contents) for part in timed]
    texts: dict[str, str] = {}
    while True:
        calls = _chosen(step, ops, estimates, alone, refused, budget_s)
        failed = _write(calls, texts, registry, seed=seed, memory_bytes=memory_bytes)
        if not failed:
            break
        refused |= failed
    left_out = tuple((ops[id_], reason) for id_, reason in refused.items())
    if not calls and len(refused) < len(timed):
        shortest_s = min(cost_s(*us) for part, us in zip(timed, alone, strict=True) if part.id not in refused)
        raise UsageError(
            f"a budget of {budget_s:.3g} s is too short to measure any call",
            hint=f"The shortest takes {shortest_s:.2g} s.",
        )
    if not calls:
        raise UsageError(
            f"nothing to measure: a script cannot call any of the {len(timed)} predicted ops",
            hint="; ".join(left_out_lines(left_out)[:3]),
        )
    kit = Kit(
        text="",
        calls=calls,
        ops=len(timed),
        share=sum(call.share for call in calls),
        estimated_s=sum(cost_s(call.cold_us, call.warm_us) for call in calls),
        left_out=left_out,
    )
    facts = _facts(kit, step, device, budget_s)
    return msgspec.structs.replace(kit, text=file_text([texts[call.op.id] for call in calls], facts))


def _alone_us(op: ReplayOp, device: DeviceProfile, contents: ContentsOf) -> tuple[float, float]:
    """Return the predicted microseconds of an isolated call for two cache states: (cold caches, warm caches as in a
    loop).
    """
    cold, warm = (simulate_op(op, device, contents(op), l2).time_us for l2 in ("cold", "warm"))
    return cold, warm


def _chosen(
    step: Step,
    ops: dict[str, ReplayOp],
    estimates: Sequence[Estimate],
    alone: Sequence[tuple[float, float]],
    refused: dict[str, Reason],
    budget_s: float,
) -> tuple[Timed, ...]:
    from opreplay.replay.export.measure import Timed, cost_s

    timed = [part for part in step.ops if part.simulated.time_us > 0]
    choices = choose(
        estimates,
        [part.count for part in timed],
        measurable=[part.id not in refused for part in timed],
        costs=[cost_s(*times_us) for times_us in alone],
        budget=budget_s,
    )
    return tuple(
        Timed(
            op=ops[timed[choice.index].id],
            cold_us=alone[choice.index][0],
            warm_us=alone[choice.index][1],
            count=timed[choice.index].count,
            share=choice.share,
        )
        for choice in choices
        if choice.share >= LEAST_SHARE
    )


def _write(
    calls: Sequence[Timed], texts: dict[str, str], registry: Registry, *, seed: int, memory_bytes: int
) -> dict[str, Reason]:
    """Append the text of each call to `texts`. If a call has values that cannot be described, its reason is returned
    instead.
    """
    from opreplay.replay.export.measure import encode_call

    failed: dict[str, Reason] = {}
    for call in calls:
        if call.op.id not in texts:
            try:
                texts[call.op.id] = encode_call(call, registry, seed=seed, memory_bytes=memory_bytes)
            except NotReplayable as stopped:
                failed[call.op.id] = stopped.reason
    return failed


def _facts(kit: Kit, step: Step, device: DeviceProfile, budget_s: float) -> dict[str, object]:
    """Return the file's contents except its calls."""
    from opreplay.replay.export.measure import left_out_lines

    return {
        "soc": canonical_name(device.name) or "",
        "constants": f"{step.device} {step.device_version}",
        "total_us": round(step.total_us, 1),
        "band_us": [round(step.low_us, 1), round(step.high_us, 1)],
        "variance_share": round(kit.share, 3),
        "budget_s": budget_s,
        "estimated_s": round(kit.estimated_s),
        "l2_bytes": int(device.l2_bytes),
        "socs": {
            re.sub(r"[^a-z0-9-]", "", alias.lower()).removeprefix("ascend"): name
            for name in list_devices()
            for alias in (name, *load_device(name).aliases)
        },
        "left_out": left_out_lines(kit.left_out),
    }
