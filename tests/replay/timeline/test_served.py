"""Steps of pipeline stages put together: the time of a token, tokens per second, and memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from opreplay.replay.ascend import load_device
from opreplay.replay.ascend.simulate.devices import simulate_plan
from opreplay.replay.ascend.simulate.step import Step
from opreplay.replay.ascend.simulate.step_residency import PlannedStep
from opreplay.replay.capture.capture import capture_made
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.ops.work.expected import expected_contents
from opreplay.replay.timeline.served import SERVER_MS, served


def stage_of(layers: int) -> tuple[ReplayPlan, list[Step]]:
    def make() -> tuple[Any, ...]:
        model = nn.Sequential(*[nn.Linear(8192, 8192, dtype=torch.float16) for _ in range(layers)])
        return model, (torch.zeros(8192, 8192, dtype=torch.float16),)

    plan = capture_made(make, source="here")
    return plan, simulate_plan(PlannedStep(plan, expected_contents()), [load_device("910b3")])


def test_unequal_stages_add_up_and_the_slowest_sets_the_rate() -> None:
    """Each stage was taken to last as long as the first, which has no head."""
    short, long = stage_of(1), stage_of(5)
    times = {"batch": 4, "context": 16, "decodes": True}
    (first,), (last,), (both,) = (served(stages, **times) for stages in ([short], [long], [short, long]))
    steps_ms = [row.token_ms - SERVER_MS for row in (first, last)]
    assert both.token_ms == pytest.approx(sum(steps_ms) + SERVER_MS)
    assert both.low_ms < both.token_ms < both.high_ms
    assert 2 * steps_ms[1] > both.token_ms, "the longer stage is always busy"
    assert both.tokens_per_s == pytest.approx(4e3 / steps_ms[1])
    assert both.memory_bytes == last.memory_bytes > first.memory_bytes
    (prefill,) = served([short, long], batch=4, context=16, decodes=False)
    assert prefill.token_ms == pytest.approx(sum(steps_ms) / 64)
    assert prefill.tokens_per_s == pytest.approx(64e3 / steps_ms[1])


def test_equal_stages_share_the_time_of_the_server() -> None:
    stage = stage_of(1)
    (alone,), (both,) = (served([stage] * count, batch=1, context=16, decodes=True) for count in (1, 2))
    assert both.token_ms == pytest.approx(2 * alone.token_ms - SERVER_MS)
    assert both.tokens_per_s == pytest.approx(2e3 / both.token_ms)
