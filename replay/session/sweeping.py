# pyright: strict
"""Calls that are written down, over sizes: measured here, predicted on simulated devices."""

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
    """What calls take, one a size."""

    _command = "opreplay.sweep"

    def __init__(self, found: Cases) -> None:
        self.found = found
        """Everything, devices and caches included."""

    @property
    def cases(self) -> tuple[Case, ...]:
        """One a call, in the order of the sizes."""
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
    """What calls such as "aten::mm(bf16[64,n], bf16[n,32])" take, with every combination of the sizes they name.

    Args:
        calls: as `opreplay op` takes them.
        vary: values of sizes, one text a size: "n=1,47,128", "n=2^7..2^14".
        soc: names of simulated devices, or device files.
        options: how to measure; without, calls are predicted alone.

    Raises UsageError for texts that are no calls, and for sizes without values.
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
