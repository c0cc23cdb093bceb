"""What a check says of trials whose process a signal ends: one may have been meant for anybody."""

from __future__ import annotations

import os
import signal

import msgspec
import pytest

from opreplay.replay.check import isolated
from opreplay.replay.check.model import Trial
from opreplay.replay.execute.processes.child import Child
from opreplay.replay.session.checking import check

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_children")]


@pytest.mark.parametrize(
    ("numbers", "verdict"),
    [
        ([signal.SIGKILL], "pass"),
        ([signal.SIGSEGV], "pass"),
        ([signal.SIGSTOP], "pass"),
        ([signal.SIGKILL, signal.SIGTERM], "not reached"),
        ([signal.SIGSEGV, signal.SIGSEGV], "fail"),
    ],
)
def test_a_trial_is_judged_by_what_it_can_have_raised(
    monkeypatch: pytest.MonkeyPatch, numbers: list[int], verdict: str
) -> None:
    waiting, send = list(numbers), Child.send

    def send_and_signal(self: Child, message: msgspec.Struct) -> None:
        # Before the trial arrives, so that it cannot be over by then.
        if isinstance(message, Trial) and waiting:
            os.kill(self.process.pid, waiting.pop(0))
        send(self, message)

    monkeypatch.setattr(Child, "send", send_and_signal)
    monkeypatch.setattr(isolated, "LOOK_S", 0.05)
    found = check("aten::relu", shapes=["f32[4]"], points=["CPU fallback"])
    (point,) = found.points
    assert (point.verdict, waiting) == (verdict, [])
    assert bool(found.failed()) == (verdict != "pass")
