"""What only a CUDA device can show: events, graphs, flushed caches and profiles of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch

from opreplay.replay.execute.attempt import attempt
from opreplay.replay.execute.executors.torch.device import TorchExecutor, TorchPrepared
from opreplay.replay.execute.measure import measure
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp
from opreplay.replay.resolve.names import find_overload
from opreplay.replay.resolve.policy import Policy
from opreplay.traces.model import TensorMeta

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no CUDA device on this machine", allow_module_level=True)


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


def test_an_op_of_a_plan_is_measured_with_events(executor: TorchExecutor) -> None:
    square = TensorMeta(shape=(4096, 4096), dtype="float32")
    args = tuple(ReplayArg(name=name, type="Tensor", tensors=(square,)) for name in ("self", "mat2"))
    recorded = Recorded(host_us_total=1, host_us_median=1)
    op = ReplayOp(id="a" * 12, name="aten::mm", count=1, recorded=recorded, args=args)
    outcome = attempt(executor, op, seed=0, options=MeasureOptions())
    assert outcome.measurement is not None
    assert 50 < outcome.measurement.median_us < 100_000


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
