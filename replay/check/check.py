# pyright: strict
"""The check of one op: every point, in a process of its own or in this one."""

from __future__ import annotations

from collections.abc import Iterator

from opreplay.replay.check.isolated import LIMIT_S, Checker, Tell
from opreplay.replay.check.model import CheckResult, Finding, Listed, Setup, Timed, point_result


def check_op(setup: Setup, *, isolated: bool = True, limit_s: float = LIMIT_S, tell: Tell | None = None) -> CheckResult:
    """Run all trials of a setup and judge every point.

    With `isolated` a crash or a hang costs the case that it happens in; without, it is this process that ends.
    Raises UsageError for what cannot be checked, EnvironmentRefused for a device that is not there.
    """
    if not isolated:
        listed, findings = _here(setup)
        return _judged(setup, listed, findings)
    checker = Checker(setup, limit_s=limit_s)
    try:
        listed = checker.start()
        return _judged(setup, listed, checker.trials(listed, tell))
    finally:
        checker.close()


def _here(setup: Setup) -> tuple[Listed, Iterator[tuple[str, Finding | Timed]]]:
    """The same in this process; torch's threads and gradient mode are the caller's again at the end."""
    from opreplay.replay.check.bench import all_trials, make_bench
    from opreplay.replay.check.worker import run_trial

    bench, assumed = make_bench(setup)
    try:
        trials = all_trials(bench, setup)
    except BaseException:
        bench.executor.close()
        raise
    listed = Listed(
        op=setup.op,
        against=bench.reference.text,
        trials={point: tuple(one.case for one in made) for point, made in trials.items()},
        cases=tuple(base.text for base in bench.bases),
        facts=bench.facts,
        assumptions=assumed,
    )

    def each() -> Iterator[tuple[str, Finding | Timed]]:
        try:
            for point, made in trials.items():
                for one in made:
                    yield point, run_trial(one)
        finally:
            bench.executor.close()

    return listed, each()


def _judged(setup: Setup, listed: Listed, trials: Iterator[tuple[str, Finding | Timed]]) -> CheckResult:
    found: dict[str, list[Finding]] = {point: [] for point in listed.trials}
    times: list[Timed] = []
    for point, one in trials:
        if isinstance(one, Timed):
            times.append(one)
        found[point].append(one.finding if isinstance(one, Timed) else one)
    # The first call decides on what is simulated, and is the speed; the large one stands beside it.
    timed = times[0] if times else None
    return CheckResult(
        op=setup.op,
        against=listed.against,
        device=setup.device,
        seed=setup.seed,
        environment=listed.facts,
        points=tuple(point_result(point, findings) for point, findings in found.items()),
        speed=None if timed is None else timed.speed,
        speed_large=next((one.speed for one in times[1:]), None),
        simulated={} if timed is None else timed.simulated,
        simulated_reference={} if timed is None else timed.simulated_reference,
        cases=listed.cases,
        assumptions=listed.assumptions,
        notes=setup.notes,
    )
