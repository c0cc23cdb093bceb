# pyright: strict
"""The check of one op: every point, in a process of its own or in this one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from opreplay.replay.check.isolated import LIMIT_S, Checker, Tell
from opreplay.replay.check.model import CheckResult, Finding, Interrupted, Listed, Setup, Timed, point_result


def check_op(setup: Setup, *, isolated: bool = True, limit_s: float = LIMIT_S, tell: Tell | None = None) -> CheckResult:
    """Run all trials of a setup and judge every point.

    With `isolated` a crash or a hang costs the case that it happens in; without, it is this process that ends.
    Raises UsageError for what cannot be checked, EnvironmentRefused for a device that is not there, and Interrupted,
    which is a KeyboardInterrupt with what was found so far, when it is ended during the trials.
    """
    if not isolated:
        listed, findings = _here(setup)
        return _judged(setup, listed, findings)
    checker = Checker(setup, limit_s=limit_s)
    try:
        listed = checker.start()
        return _judged(setup, listed, checker.trials(listed, tell), checker.lost)
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


def _judged(
    setup: Setup,
    listed: Listed,
    trials: Iterator[tuple[str, Finding | Timed]],
    lost: Mapping[str, str] | None = None,
) -> CheckResult:
    found: dict[str, list[Finding]] = {point: [] for point in listed.trials}
    times: list[Timed] = []
    interrupted = False
    try:
        for point, one in trials:
            if isinstance(one, Timed):
                times.append(one)
            found[point].append(one.finding if isinstance(one, Timed) else one)
    except KeyboardInterrupt:
        interrupted = True
    for point, cases in listed.trials.items():
        left = cases[len(found[point]) :] if interrupted else ()
        found[point] += [Finding(case=case, verdict="not reached", detail="the check was interrupted") for case in left]
        if not listed.cases:
            text = next(iter(lost or {}), setup.op)
            found[point].append(Finding(case=text, verdict="not reached", detail="no call is left to try"))
    if lost and found:
        # Of the point that is about what the op does, else of the first.
        ended = [Finding(case=case, verdict="fail", detail=detail) for case, detail in lost.items()]
        point = "correctness" if "correctness" in found else next(iter(found))
        found[point] = [*ended, *(one for one in found[point] if one.case not in lost)]
    # The first call decides on what is simulated, and is the speed; the large one stands beside it.
    timed = times[0] if times else None
    result = CheckResult(
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
        interrupted=interrupted,
    )
    if interrupted:
        raise Interrupted(result)
    return result
