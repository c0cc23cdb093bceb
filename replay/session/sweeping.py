# pyright: strict
"""Measure calls that are given as text over several sizes, and predict them on simulated devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opreplay.replay.execute.options import RunOptions
from opreplay.replay.results.cases import Case, Cases
from opreplay.replay.session.display import Tabular
from opreplay.replay.session.setting import DEFAULT_SOC, several

if TYPE_CHECKING:
    from opreplay.replay.report.view import View


class Sweep(Tabular):
    """Times of calls, one case per combination of sizes."""

    _command = "opreplay.sweep"

    def __init__(self, found: Cases) -> None:
        self.found = found
        """The full result, including devices and caches."""

    @property
    def cases(self) -> tuple[Case, ...]:
        """Return one case per call and combination of sizes, in the order of the sizes."""
        return self.found.cases

    def __len__(self) -> int:
        return len(self.cases)

    def _view(self) -> View:
        from opreplay.replay.report.sweep import view

        return view(self.found)


def sweep(
    calls: str | Sequence[str],
    *,
    vary: str | Sequence[str] = (),
    soc: str | Sequence[str] = DEFAULT_SOC,
    options: RunOptions | None = None,
) -> Sweep:
    """Predict calls such as "aten::mm(bf16[64,n], bf16[n,32])" for all combinations of their sizes.

    With `options`, the calls are also measured.

    Args:
        calls: calls in the form that `opreplay op` accepts.
        vary: values of sizes, one text per size: "n=1,47,128", "n=2^7..2^14".
        soc: names of simulated devices, or device files.
        options: how to measure; without options, calls are only predicted.

    Raises UsageError for texts that are not calls, and for sizes without values.
    """
    from opreplay.replay.job.cases import Calls, cases_of
    from opreplay.replay.job.job import Job
    from opreplay.replay.job.predicting import Faults
    from opreplay.replay.job.settings import Settings
    from opreplay.replay.resolve.written.sweep import over_sizes

    written = over_sizes(several(calls), several(vary))
    job = Job.open(Calls(written), None, Settings.of(options or RunOptions()), several(soc))
    faults = Faults()
    cases = cases_of(job, faults, measure=options is not None)
    faults.conclude()
    return Sweep(cases)
