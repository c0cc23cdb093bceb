"""The folder that commands run in, and an executor whose times are always the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from opreplay.replay.execute import engines
from opreplay.replay.execute.executors.fake import FakeExecutor, FakePrepared
from opreplay.replay.execute.options import RunOptions, WorkerConfig
from opreplay.replay.execute.processes.runner import InProcess
from opreplay.replay.host import environment
from opreplay.replay.ir.model import ReplayOp
from tests.golden.inputs import forget_registrations, write_inputs


class Steady(FakeExecutor):
    """Every op takes twice as long as it was recorded to take on the host, give or take 1 %."""

    device = "cpu"

    def prepare(self, op: ReplayOp, *, seed: int) -> FakePrepared:
        taken_us = 2 * (op.recorded.host_us_median or 10.0)

        def advance() -> None:
            self.clock.elapsed_us += taken_us

        return FakePrepared(advance)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with all inputs; ops take what `Steady` says, and nothing registered before holds."""

    def make_runner(options: RunOptions, recency: object = None) -> InProcess:
        return InProcess(Steady(), WorkerConfig(options=options, memory_bytes=1 << 30))

    monkeypatch.setattr(engines, "make_runner", make_runner)
    monkeypatch.setattr(environment, "cpu_model", lambda: "a CPU")
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path)
    yield tmp_path
    forget_registrations()
