"""No step streams more than memory can: distinct bytes of what it reads, over its predicted time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

from opreplay.replay.ascend import list_devices
from opreplay.replay.ascend.simulate.devices import load_socs, simulate_plan
from opreplay.replay.ascend.simulate.step import Step
from opreplay.replay.ascend.simulate.step_residency import PlannedStep
from opreplay.replay.capture.capture import capture_made
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.ops.work.expected import expected_contents
from opreplay.replay.plan.inputs import open_trace, plan_of
from opreplay.replay.plan.selection import Selection
from opreplay.traces.samples import SAMPLES, sample_path

pytestmark = pytest.mark.slow

HIDDEN, INTERMEDIATE, LAYERS = 3584, 18944, 4
"""Of a 7B decoder, whose 28 layers are four here."""
STATES = ("sequence", "cold")


class Layer(nn.Module):
    """A decoder's layer without attention over a past: its products and norms."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.post = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.q, self.o = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(HIDDEN, INTERMEDIATE, bias=False) for _ in range(2))
        self.down = nn.Linear(INTERMEDIATE, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.o(self.q(self.norm(x)))
        y = self.post(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


@pytest.fixture(scope="module")
def decoder() -> ReplayPlan:
    """One decoded token, captured on fake tensors."""

    def make() -> object:
        net = nn.Sequential(*(Layer() for _ in range(LAYERS))).to(torch.bfloat16).requires_grad_(False)
        return net, (torch.randn(1, 1, HIDDEN, dtype=torch.bfloat16),)

    return capture_made(make, source="decoder")


def parameter_bytes(plan: ReplayPlan) -> int:
    """As the capture counted them, whatever the linking says."""
    assert plan.capture is not None
    return sum(one.size_bytes for one in plan.capture.storages if one.kind == "parameter")


def steps_of(plan: ReplayPlan, names: Sequence[str] = tuple(list_devices())) -> list[Step]:
    devices = list(load_socs(tuple(names)).values())
    return [step for l2 in STATES for step in simulate_plan(PlannedStep(plan, expected_contents()), devices, l2)]


@pytest.mark.parametrize("storages", [True, False], ids=["with storages", "without"])
def test_a_decoder_streams_all_weights_of_all_layers(decoder: ReplayPlan, storages: bool) -> None:
    sequence = decoder.sequence
    assert sequence is not None
    if not storages:
        decoder = msgspec.structs.replace(decoder, sequence=msgspec.structs.replace(sequence, memories=()))
    weights = parameter_bytes(decoder)
    for step in steps_of(decoder):
        assert step.pass_bytes == pytest.approx(weights, rel=0.001), "norms' weights and the token are the rest"
        assert weights / step.total_us * 1e6 <= step.peaks[3], (step.device, step.l2)
        assert step.beyond_hbm is None


def test_a_step_that_is_too_short_is_marked(decoder: ReplayPlan) -> None:
    step = steps_of(decoder)[0]
    short = msgspec.structs.replace(step, pass_us=step.pass_us / 10)
    assert short.beyond_hbm == pytest.approx((step.pass_bytes - step.peaks[2]) / short.pass_us * 1e6)


@pytest.mark.parametrize("name", list(SAMPLES))
def test_no_sample_streams_more_than_memory_can(name: str) -> None:
    assert_streams(sample_path(name))


def test_no_public_trace_streams_more_than_memory_can(shared_traces: Path) -> None:
    each_kind = ("910b3", "910b4", "950pr")
    counted = sum(assert_streams(path, each_kind) for path in sorted(shared_traces.glob("*.json.gz"))[::2])
    assert counted > 1e9, "bytes that the steps of all of them read"


def assert_streams(path: Path, names: Sequence[str] = tuple(list_devices())) -> int:
    plan = plan_of(open_trace(str(path)), Selection(select="owner"), device="cpu", in_order=True)
    steps = steps_of(plan, names)
    assert [(step.device, step.l2) for step in steps if step.beyond_hbm is not None] == []
    return max((step.pass_bytes for step in steps), default=0)
