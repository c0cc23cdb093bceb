# pyright: strict
"""Checks opreplay's reference implementations.

Each one is compared with itself in float64. With an installed library, the ops of the library are compared with the
reference implementations instead.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

import msgspec

from opreplay.replay.check.bench import TRIALS, add_compact, made_up_case
from opreplay.replay.check.calling.calls import Bench
from opreplay.replay.check.calling.target import ITSELF, Reference, find_target
from opreplay.replay.check.model import Finding, Verdict, point_result
from opreplay.replay.execute.executors.make import make_executor
from opreplay.replay.execute.executors.torch.device import TorchExecutor
from opreplay.replay.execute.options import RunOptions, WorkerConfig
from opreplay.replay.host import environment
from opreplay.replay.host.libraries import LIBRARY_OF
from opreplay.replay.ops.register import implemented, is_reference, register_op, stand_in_of
from opreplay.traces.errors import EnvironmentRefused, OpReplayError, UsageError

POINTS = ("schema", "shape inference", "correctness")
"""Points (properties) that are checked for a reference implementation."""
LIBRARY = "the stand-in"

Tell = Callable[[str, int, int], None]


class StandIn(msgspec.Struct, frozen=True, kw_only=True):
    """The results of checking one op."""

    op: str
    against: str
    """Description of the reference that results are compared with; "" if no call of the op could be generated."""
    verdicts: dict[str, Verdict] = {}
    """Name of a point → its verdict."""
    cases: int = 0
    ulp: float | None = None
    """Largest distance to the float64 result, in units in the last place."""
    detail: str = ""
    """The first failing case, or why no case could be tried."""

    @property
    def failed(self) -> bool:
        return any(verdict in ("fail", "missing") for verdict in self.verdicts.values())


class Fidelity(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all checked ops."""

    device: str
    rows: tuple[StandIn, ...]

    def of(self, against: str) -> list[StandIn]:
        """Return the ops that were compared with `against`."""
        return [row for row in self.rows if row.against == against]

    @property
    def failed(self) -> list[StandIn]:
        return [row for row in self.rows if row.failed]


def check_stand_ins(
    pattern: str = "*", *, library: str | None = None, device: str = "cpu", seed: int = 0, tell: Tell | None = None
) -> Fidelity:
    """Check the reference implementations whose name matches a glob.

    Each one is compared with itself in float64. With `library`, the library's own ops are compared with the reference
    implementations instead. Everything runs in this process, because reference implementations are opreplay's own code.
    Raises UsageError if nothing matches, EnvironmentRefused if a library or device is missing.
    """
    names = [name for group in implemented().values() for name in group if fnmatchcase(name, pattern)]
    if library is not None:
        names = [name for name in names if LIBRARY_OF[name.partition("::")[0]] == library]
    if not names:
        raise UsageError(
            f"no reference implementation matches {pattern}",
            hint="Give a glob such as '_C::*'; `opreplay list ops` lists them.",
        )
    options = RunOptions(device=device, seed=seed)
    executor = make_executor(WorkerConfig(options=options, memory_bytes=environment.default_op_bytes()))
    assert isinstance(executor, TorchExecutor)
    rows: list[StandIn] = []
    try:
        for number, name in enumerate(names):
            if tell is not None:
                tell(name, number, len(names))
            rows.append(_checked(name, executor, seed, library))
    finally:
        executor.close()
    return Fidelity(device=device, rows=tuple(rows))


def _checked(name: str, executor: TorchExecutor, seed: int, library: str | None) -> StandIn:
    reference = ITSELF
    try:
        if library is None:
            register_op(name)
        target = find_target(name)  # imports the library, where one is named
        if library is not None:
            if is_reference(name):
                raise EnvironmentRefused(f"{library} is not installed", hint=f"Install {library}, or leave it out.")
            reference = Reference(text=LIBRARY, function=stand_in_of(name))
        bench = Bench(target=target, reference=reference, executor=executor, seed=seed)
        bench.bases = [made_up_case(bench, name, target)]
    except EnvironmentRefused:
        raise
    except OpReplayError as error:
        return StandIn(op=name, against="", detail=error.problem)
    add_compact(bench)
    return _judged(name, bench)


def _judged(name: str, bench: Bench) -> StandIn:
    trials = {point: [attempt.run() for attempt in TRIALS[point](bench)] for point in POINTS}
    results = [point_result(point, [f for f in run if isinstance(f, Finding)]) for point, run in trials.items()]
    correct = results[-1]
    wrong = next((judged for judged in results if judged.verdict in ("fail", "missing")), None)
    return StandIn(
        op=name,
        against=bench.reference.text if correct.of("pass") or wrong is not None else "",
        verdicts={judged.point: judged.verdict for judged in results},
        cases=sum(len(judged.of("pass", "fail")) for judged in results),
        ulp=max((finding.ulp for finding in correct.cases if finding.ulp is not None), default=None),
        detail="" if wrong is None else f"{wrong.point}: {wrong.detail}",
    )
