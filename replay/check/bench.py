# pyright: strict
"""Builds the op, reference and test cases of a check from its setup, and creates the trials of every point."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

from opreplay.replay.check import variants
from opreplay.replay.check.calling.calls import Bench, first_working
from opreplay.replay.check.calling.refusals import words
from opreplay.replay.check.calling.target import Target, find_reference, find_target
from opreplay.replay.check.cases import Case, given_cases, guesses
from opreplay.replay.check.model import Listed, Setup, Timed
from opreplay.replay.check.points import bad_input, dynamic, gradient, integration, promises, repeated, values
from opreplay.replay.check.points.peak import too_much
from opreplay.replay.check.points.trials import Attempt, attempt
from opreplay.replay.check.simulated import simulated
from opreplay.replay.check.speed import timed
from opreplay.replay.execute.executors.make import make_executor
from opreplay.replay.execute.executors.torch.device import TorchExecutor
from opreplay.replay.execute.options import RunOptions, WorkerConfig
from opreplay.replay.ir.describe import schema_text
from opreplay.replay.ir.model import Assumption
from opreplay.traces.errors import UsageError

TRIALS: dict[str, Callable[[Bench], list[Attempt]]] = {
    "schema": promises.schema,
    "shape inference": promises.shape_inference,
    "correctness": values.correctness,
    "dtypes": values.dtypes,
    "broadcast, scalars": lambda bench: [*values.broadcast(bench), *promises.broadcast_fakes(bench)],
    "dynamic shapes": dynamic.dynamic_shapes,
    "gradient": gradient.gradient,
    "in-place, out=": integration.in_place,
    "determinism": repeated.determinism,
    "memory": repeated.memory,
    "asynchrony": repeated.asynchrony,
    "bad input": bad_input.bad_input,
    "CPU fallback": integration.cpu_fallback,
    "autocast": integration.autocast,
    "vmap": integration.vmap,
    "ONNX export": integration.onnx_export,
}
"""Point (checked property) → function that creates its trials. The trials of "speed" are missing here: `all_trials`
creates them.
"""


def make_bench(setup: Setup, trying: Callable[[str], None] | None = None) -> tuple[Bench, tuple[Assumption, ...]]:
    """Return the op, its reference and its cases in this process, and the assumptions made about the cases.

    `trying` is called with the text of each call before the call is made, and with "" after the call. Cases that
    terminated an earlier process are left out, so the op may have no cases. Raises UsageError for unknown names, and
    for calls that match no overload of the op.
    """
    options = RunOptions(
        device=setup.device,
        threads=setup.threads,
        seed=setup.seed,
        plugins=setup.plugins,
        init_modules=setup.init_modules,
    )
    executor = make_executor(WorkerConfig(options=options, memory_bytes=setup.memory_bytes))
    assert isinstance(executor, TorchExecutor)
    target = find_target(setup.op)
    bench = Bench(
        target=target,
        reference=find_reference(setup.against, target),
        executor=executor,
        seed=setup.seed,
        isolated=trying is not None,
        trying=trying,
        lost=setup.lost,
    )
    assumed: list[Assumption] = []
    if setup.recorded:
        bench.bases = [case for case in _recorded(setup, target) if case.text not in setup.lost]
    elif setup.shapes:
        written = [given_cases(text, setup.op, target.specs) for text in setup.shapes]
        sound = [[case for case in cases if case.text not in setup.lost] for cases in written]
        bench.bases = [_given(bench, setup, cases) for cases in sound if cases]
    else:
        case = made_up_case(bench, setup.op, target)
        bench.bases = [case]
        text = case.text.partition(": ")[2]
        assumed.append(Assumption(argument="*", what=f"calls are generated, because none was given: {text}"))
    add_compact(bench)
    return bench, tuple(assumed)


def _recorded(setup: Setup, target: Target) -> list[Case]:
    """Return the trace's calls whose overload is being checked. Raises UsageError if there are none."""
    cases = [Case(kind="recorded", op=op) for op in setup.recorded if (op.overload or "") in target.functions]
    if not cases:
        overloads = ", ".join(sorted({op.overload or "default" for op in setup.recorded}))
        raise UsageError(
            f"the trace contains calls of several overloads of {setup.op}: {overloads}", hint="Name one overload."
        )
    return cases


def _given(bench: Bench, setup: Setup, cases: Sequence[Case]) -> Case:
    """Return the first given call that the op accepts. If only the reference accepts a call, return that call and
    record it as a failing case.

    Raises UsageError if both the op and its reference reject the call. If correctness is to be checked, also raises
    UsageError if only the reference rejects it.
    """
    case, error = first_working(bench, cases)
    # A device that an op has broken refuses everything: that is no refusal of the call.
    bench.executor.synchronize()
    first = case or cases[0]
    call = first.text.partition(": ")[2]
    if case is not None:
        if error is not None and "correctness" in setup.points:
            raise UsageError(
                f"the reference {bench.reference.text} rejects the given call {call}: {words(error)}",
                hint="Give a call that both accept, or another reference (--against).",
            )
        return case
    for candidate in cases if bench.has_reference(first) else ():
        with contextlib.suppress(Exception):  # references raise anything
            bench.refer(candidate, bench.arguments(candidate))
            bench.refused.append(candidate)
            return candidate
    also = f", and so does the reference {bench.reference.text}" if bench.has_reference(first) else ""
    why = "" if error is None else f": {words(error)}"
    raise UsageError(
        f"{setup.op} rejects the given call {call}{also}{why}",
        hint=(
            f"Give a call that it accepts with --shapes or --trace. Its schema: {schema_text(bench.spec(first).text)}."
        ),
    )


def add_compact(bench: Bench) -> None:
    """Add to `compact_bases` a small version of each case, or the case itself if the op accepts none."""
    for base in bench.bases:
        case, _ = first_working(bench, variants.compact(base) or [base])
        bench.compact_bases.append(case or base)


def made_up_case(bench: Bench, name: str, target: Target) -> Case:
    """Return a generated call that the op accepts, found by trial. Raises UsageError if there is none."""
    error: BaseException | None = None
    for spec in target.specs:
        case, raised = first_working(bench, list(guesses(name, spec)))
        if case is not None:
            return case
        error = error or raised
    why = f": {str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}" if error else ""
    raise UsageError(
        f"no call of {name} could be generated{why}",
        hint=(
            f"Give one with --shapes '{name}(f32[16,32], ...)' or --trace. Its schema: "
            f"{schema_text(target.specs[0].text)}."
        ),
    )


def prepare(
    setup: Setup, trying: Callable[[str], None] | None = None
) -> tuple[Bench, dict[str, list[Attempt]], Listed]:
    """Return the op with its cases, the trials of each requested point in report order, and the names of the trials.

    Raises the same errors as `make_bench`.
    """
    bench, assumed = make_bench(setup, trying)
    try:
        trials = all_trials(bench, setup)
    except BaseException:
        bench.executor.close()
        raise
    bench.trying = None
    listed = Listed(
        op=setup.op,
        against=bench.reference.text,
        trials={point: tuple(attempt.case for attempt in attempts) for point, attempts in trials.items()},
        cases=tuple(base.text for base in bench.bases),
        facts=bench.executor.facts(),
        assumptions=assumed + _filled_at_random(bench),
    )
    return bench, trials, listed


def _filled_at_random(bench: Bench) -> tuple[Assumption, ...]:
    what = "random integers, because no initializer is known (docs/initializers.md)"
    return tuple(Assumption(argument=name, what=what) for name in bench.at_random)


def all_trials(bench: Bench, setup: Setup) -> dict[str, list[Attempt]]:
    if not bench.bases:
        return {point: [] for point in setup.points}
    trials = {point: TRIALS[point](bench) for point in setup.points if point in TRIALS}
    if setup.points and "correctness" not in trials:
        # A given call that the op refuses and the reference takes is no pass, whatever was asked for.
        for case in bench.refused:
            trials.setdefault(setup.points[0], []).insert(0, attempt(bench, case, values.against_reference))
    if "speed" in setup.points:
        speed = [Attempt(case.text, partial(_speed, bench, setup, case)) for case in speed_cases(bench)]
        trials.setdefault("speed", []).extend(speed)
    return trials


def speed_cases(bench: Bench) -> list[Case]:
    """Return the cases to time: the first call, a large call, and the large call transposed.

    Without a reference, only the first call is timed. The large call is needed because a small one measures only
    overhead. The large call is the largest case. If all cases are small, it is the first call with more elements.
    """
    first = bench.first
    if not bench.has_reference(first):
        return [first]
    large: Case | None = max(bench.bases, key=variants.elements)
    if variants.elements(large) < LARGE_ELEMENTS:
        large, _ = first_working(bench, [case for case in variants.huge(first) if too_much(bench, case) is None])
    others = [case for case in variants.vary_strides(large or first) if case.kind.startswith("transposed")]
    transposed, _ = first_working(bench, [case for case in others if too_much(bench, case) is None])
    cases = {id(case): case for case in (first, large, transposed) if case is not None}
    return list(cases.values())


LARGE_ELEMENTS = 1 << 20
"""Minimum number of elements in all tensors of a large call; the time of smaller calls is mostly overhead."""


def _speed(bench: Bench, setup: Setup, case: Case) -> Timed:
    finding, speed = timed(bench, case, limit_s=setup.speed_s)
    mine, other = simulated(bench, case, setup.socs) if case is bench.first else ({}, {})
    return Timed(finding=finding, speed=speed, simulated=mine, simulated_reference=other)
