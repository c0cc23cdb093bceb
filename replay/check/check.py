# pyright: strict
"""Runs all trials of the check of one op, in a separate process or in this one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from opreplay.replay.check.isolated import LIMIT_S, Checker, Tell
from opreplay.replay.check.model import CheckResult, Finding, Interrupted, Listed, Setup, Timed, point_result


def check_op(setup: Setup, *, isolated: bool = True, limit_s: float = LIMIT_S, tell: Tell | None = None) -> CheckResult:
    """Run all trials of a setup and judge every point.

    With `isolated`, a crash or a hang affects only its case; otherwise it ends this process. Raises UsageError if the
    op cannot be checked, and EnvironmentRefused if a device is missing. If the trials are interrupted, raises
    Interrupted. This is a KeyboardInterrupt that holds the results so far.
    """
    if not isolated:
        return _judged(setup, *_here(setup), {})
    checker = Checker(setup, limit_s=limit_s)
    try:
        listed = checker.start()
        return _judged(setup, listed, checker.trials(listed, tell), checker.lost)
    finally:
        checker.close()


def _here(setup: Setup) -> tuple[Listed, Iterator[tuple[str, Finding | Timed]]]:
    """Run the trials in this process, and restore torch's thread count and gradient mode at the end."""
    from opreplay.replay.check.bench import prepare

    bench, trials, listed = prepare(setup)

    def findings() -> Iterator[tuple[str, Finding | Timed]]:
        try:
            for point, attempts in trials.items():
                for attempt in attempts:
                    yield point, attempt.run()
        finally:
            bench.executor.close()

    return listed, findings()


def _judged(
    setup: Setup, listed: Listed, trials: Iterator[tuple[str, Finding | Timed]], lost: Mapping[str, str]
) -> CheckResult:
    """Run the trials and return the check's result.

    `lost` holds cases that terminated a process before its first trial. It may grow while the trials run: a process
    that ends is replaced by a new one, which may end in the same way.
    """
    findings: dict[str, list[Finding]] = {point: [] for point in listed.trials}
    times: list[Timed] = []
    interrupted = False
    try:
        for point, finding in trials:
            if isinstance(finding, Timed):
                times.append(finding)
            findings[point].append(finding.finding if isinstance(finding, Timed) else finding)
    except KeyboardInterrupt:
        interrupted = True
    for point, cases in listed.trials.items():
        for case in cases[len(findings[point]) :] if interrupted else ():
            findings[point].append(Finding(case=case, verdict="not reached", detail="the check was interrupted"))
        if not listed.cases:
            case = next(iter(lost), setup.op)
            findings[point].append(Finding(case=case, verdict="not reached", detail="no call is left to try"))
    if lost and findings:
        # Of the point that is about what the op does, else of the first.
        point = "correctness" if "correctness" in findings else next(iter(findings))
        ended = [Finding(case=case, verdict="fail", detail=detail) for case, detail in lost.items()]
        findings[point] = [*ended, *(finding for finding in findings[point] if finding.case not in lost)]
    # The first call decides on what is simulated, and is the speed; the large one stands beside it.
    untimed = Timed(finding=Finding(verdict="not reached"))
    first, large = [*times, untimed, untimed][:2]
    checked = CheckResult(
        op=setup.op,
        against=listed.against,
        device=setup.device,
        seed=setup.seed,
        environment=listed.facts,
        points=tuple(point_result(point, cases) for point, cases in findings.items()),
        speed=first.speed,
        speed_large=large.speed,
        simulated=first.simulated,
        simulated_reference=first.simulated_reference,
        cases=listed.cases,
        assumptions=listed.assumptions,
        notes=setup.notes,
        interrupted=interrupted,
    )
    if interrupted:
        raise Interrupted(checked)
    return checked
