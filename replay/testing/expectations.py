# pyright: strict
"""Assertions for a project's tests: ops can be replayed, are not slower than before, and are correct.

They work with any test runner. Each method raises an AssertionError whose message shows what a developer needs to see.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from opreplay.replay.execute.options import RunOptions
from opreplay.traces.errors import UsageError

if TYPE_CHECKING:
    from opreplay.replay.check.model import CheckResult
    from opreplay.replay.session.op import Op
    from opreplay.replay.session.trace import OpenTrace, Source
    from opreplay.replay.session.whole import Results

SHOWN = 10
"""Maximum number of lines of one kind in a message."""


class OpsNotAsExpected(AssertionError):
    """Raised if ops were not replayed, became slower, or are wrong."""


class Expectations:
    """Value of the fixture `opreplay`. File names are relative to the test's folder."""

    def __init__(self, folder: Path, *, device: str = "cpu", update: bool = False) -> None:
        self.folder = folder
        self.device = device
        self.update = update
        """Whether baselines are written instead of compared."""

    def open(self, trace: Source, **selection: Any) -> OpenTrace:
        """Open a trace, a plan or TraceLens IR with the selection options, as `opreplay.open` does."""
        from opreplay.replay.session.trace import open

        chosen: dict[str, Any] = {"device": self.device, **selection}
        return open(self.folder / trace if isinstance(trace, (str, os.PathLike)) else trace, **chosen)

    def op(self, text: str, **sizes: int) -> Op:
        """Return the op for a call in the notation of reports, as `opreplay.op` does."""
        from opreplay.replay.session.single import op

        return op(text, device=self.device, allow_imports=None, plugins=(), **sizes)

    def replay(
        self,
        trace: Source | OpenTrace,
        *,
        baseline: str | os.PathLike[str] | None = None,
        fail_if: str | Sequence[str] = ("slower>5%", "unclear>50%"),
        may_fail: int = 0,
        options: RunOptions | None = None,
        **selection: Any,
    ) -> Results:
        """Measure the ops of a trace; fail if more than `may_fail` are not replayed, or if one regressed.

        Args:
            trace: a file, or the result of `open`.
            baseline: a .jsonl file of an earlier run on this machine to compare with.
            fail_if: conditions of `opreplay compare --fail-if` for the baseline: "slower>5%", "total>3%", "lost>0";
                "unclear>50%" fails if times vary too much for a conclusion.
            may_fail: number of ops that need not be replayed.
            options: how to measure.
            selection: options of `opreplay.open`, such as `top=10`.

        Raises OpsNotAsExpected; UsageError for an invalid condition or selection; EnvironmentRefused for a baseline of
        another machine or measurement method.
        """
        from opreplay.replay.results.compare.regressions import parse_condition
        from opreplay.replay.session.trace import OpenTrace
        from opreplay.replay.session.whole import run

        conditions = [parse_condition(text) for text in ([fail_if] if isinstance(fail_if, str) else fail_if)]
        if isinstance(trace, OpenTrace) and selection:
            raise UsageError(
                "the trace is already open, so selection options have no effect",
                hint="Pass the selection to opreplay.open.",
            )
        opened = trace if isinstance(trace, OpenTrace) else self.open(trace, **selection)
        if not len(opened):
            raise OpsNotAsExpected("nothing was replayed: the selection contains no ops")
        file = None if baseline is None else self.folder / baseline
        before, output = (None, file) if self.update else (file, None)
        if before is not None and not before.is_file():
            raise OpsNotAsExpected(
                f"no baseline {file}; write it with pytest --opreplay-update on the machine that runs the tests"
            )
        chosen = msgspec.structs.replace(options or RunOptions(), device=opened.setting.device)
        results = run(opened, options=chosen, output=output, force=True)
        missed = [f"{op.name} {op.inputs}: {op.why_not()}" for op in results.ops if op.status != "replayed"]
        if len(missed) > may_fail:
            raise OpsNotAsExpected(_listed(f"{len(missed)} of {len(results.ops)} ops were not replayed", missed))
        if before is not None:
            _refuse_regressions(before, results, conditions)
        return results

    def check(self, op: str, *, require: Sequence[str] | None = None, **options: Any) -> CheckResult:
        """Check an op as `opreplay.check` does, and fail if a required check fails or was not run.

        The required checks are those in `require`, by default right and safe.
        """
        from opreplay.replay.session.checking import check

        chosen: dict[str, Any] = {"device": self.device, **options}
        checked = check(op, **chosen)
        failed = [f"{judged.point}: {judged.verdict}; {judged.detail}" for judged in checked.failed(require)]
        if failed:
            raise OpsNotAsExpected("\n".join([f"{op} against {checked.against}:", *failed]))
        return checked


def _refuse_regressions(file: Path, results: Results, conditions: Sequence[Any]) -> None:
    from opreplay.replay.report.views.comparison import first_line
    from opreplay.replay.results.compare.regressions import untested_conditions, violations
    from opreplay.replay.session.whole import compare

    comparison = compare(file, results).found
    broken = [*violations(conditions, comparison), *untested_conditions(conditions, comparison)]
    if broken:
        raise OpsNotAsExpected(_listed(f"against {file.name}: {first_line(comparison)}", broken))


def _listed(title: str, lines: Sequence[str]) -> str:
    more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return "\n".join([title, *(f"  {line}" for line in (*lines[:SHOWN], *more))])
