"""What only a CUDA device can show: events, graphs, flushed caches and profiles of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch

from opreplay.replay.execute.executors.torch.device import TorchExecutor, TorchPrepared
from opreplay.replay.execute.measure import measure
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.ir.model import Recorded, ReplayOp
from opreplay.replay.resolve.names import find_overload
from opreplay.replay.resolve.policy import Policy

pytestmark = pytest.mark.gpu


@pytest.fixture
def executor() -> Iterator[TorchExecutor]:
    made = TorchExecutor("cuda", partial(find_overload, policy=Policy()), memory_bytes=4 * 10**9)
    yield made
    made.close()


def relu(count: int) -> TorchPrepared:
    return TorchPrepared(partial(torch.ops.aten.relu.default, torch.randn(count, device="cuda")), (), 10**9)


def test_device_time_is_apart_from_the_hosts(executor: TorchExecutor) -> None:
    found = measure(executor, relu(1024), MeasureOptions(cache="warm"))
    assert found.host_us is not None
    assert 0.5 < found.median_us < 20.0


def test_a_graph_takes_no_longer_than_its_calls(executor: TorchExecutor) -> None:
    plain = measure(executor, relu(1024), MeasureOptions(cache="warm"))
    graph = measure(executor, relu(1024), MeasureOptions(cache="warm", cuda_graph=True))
    assert graph.graph
    assert graph.median_us < 1.5 * plain.median_us


def test_cold_arguments_take_longer_than_warm_ones(executor: TorchExecutor) -> None:
    assert executor.cache_bytes > 0
    warm = measure(executor, relu(1 << 21), MeasureOptions(cache="warm"))
    cold = measure(executor, relu(1 << 21), MeasureOptions(cache="cold"))
    assert cold.cache == "cold"
    assert cold.median_us > 1.05 * warm.median_us


def test_a_profile_names_the_kernel(executor: TorchExecutor) -> None:
    op = ReplayOp(id="a" * 12, name="aten::relu", count=1, recorded=Recorded(host_us_total=1, host_us_median=1))
    found = executor.profile(relu(1024), op)
    assert found.has_device
    assert [kernel.count for kernel in found.kernels] == [1]
