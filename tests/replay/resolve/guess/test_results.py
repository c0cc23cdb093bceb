"""Traces without strides and values: what they do not say follows from the sizes of results and of neighbours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from opreplay.replay.execute.attempt import attempt
from opreplay.replay.execute.executors.torch.device import TorchExecutor
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.plan.build import build_plan
from opreplay.replay.resolve.guess.embedding_tables import TABLE_RULES
from opreplay.replay.resolve.guess.lists import LIST_RULES
from opreplay.replay.resolve.guess.networks import NETWORK_RULES
from opreplay.replay.resolve.guess.results import RESULT_RULES
from opreplay.replay.resolve.guess.windows import WINDOW_RULES
from opreplay.replay.resolve.names import find_overload
from opreplay.replay.resolve.policy import Policy
from opreplay.traces import read_trace

pytestmark = pytest.mark.slow

ONCE = MeasureOptions(op_time_s=0.0, min_samples=1, max_samples=1, warmup_calls=1, warmup_s=0.0)


@pytest.fixture(scope="module")
def executor() -> Iterator[TorchExecutor]:
    made = TorchExecutor("cpu", lambda op: find_overload(op, Policy()), memory_bytes=10**8)
    yield made
    made.close()


def stripped(step: Callable[[], object], folder: Path) -> ReplayPlan:
    """The plan of one step, from a profile as an older torch writes it: names, sizes and types."""
    with torch.enable_grad(), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    trace = json.loads(path.read_text())
    for event in trace["traceEvents"]:
        for column in ("Input Strides", "Concrete Inputs"):
            event.get("args", {}).pop(column, None)
    path.write_text(json.dumps(trace))
    return build_plan(read_trace(path), select="all")


def value_of(plan: ReplayPlan, name: str, argument: str) -> Any:
    (op, *_) = (op for op in plan.ops if op.name == name)
    return next(arg.value for arg in op.args if arg.name == argument)


def resampled() -> None:
    image = torch.randn(2, 4, 6, 6, requires_grad=True)
    up = F.interpolate(image, scale_factor=3, mode="nearest")
    smooth = F.interpolate(image, size=(9, 7), mode="bilinear", align_corners=False)
    padded = F.pad(image, (1, 2, 3, 0), mode="reflect") * 2
    (up.sum() + smooth.sum() + padded.sum() + F.pad(image, (1, 1)).sum() + F.pixel_shuffle(image, 2).sum()).backward()


def pooled() -> None:
    line, volume = torch.randn(2, 3, 16, requires_grad=True), torch.randn(1, 2, 6, 6, 6, requires_grad=True)
    total = F.max_pool1d(line, 2).sum() + F.avg_pool1d(line, 2).sum() + F.adaptive_max_pool1d(line, 3).sum()
    (total + F.max_pool3d(volume, 2).sum() + F.adaptive_avg_pool3d(volume, 2).sum()).backward()


def normalised() -> None:
    F.group_norm(torch.randn(2, 12, 5, 5, requires_grad=True), 4).sum().backward()


def recurrent() -> None:
    nn.LSTM(4, 6, 2, bidirectional=True)(torch.randn(5, 3, 4))
    nn.GRU(4, 6, bias=False)(torch.randn(5, 3, 4))


def arranged() -> None:
    x = torch.randn(4, 6)
    for made in (
        x.flip(0),
        x.movedim(0, 1),
        torch.roll(x, 1, 0),
        x.unfold(1, 3, 1),
        x.repeat(2, 3),
        x.unflatten(1, (2, 3)),
    ):
        made.add(1)
    torch.topk(x, 2)
    torch.multinomial(x.abs(), 1)
    torch.linspace(0, 1, 7).add(1)
    torch.eye(5).add(1)
    torch.randperm(9).add(1)


def spectra() -> None:
    wave = torch.randn(2, 400)
    torch.stft(wave, 64, window=torch.hann_window(64), return_complex=True)
    torch.fft.irfft(torch.fft.rfft(wave))
    torch.fft.fft2(torch.randn(4, 4))


def grouped_heads() -> None:
    query, key = torch.randn(1, 8, 4, 16), torch.randn(1, 2, 4, 16)
    F.scaled_dot_product_attention(query, key, key, enable_gqa=True)


def several_tensors() -> None:
    tensors = [torch.randn(3), torch.randn(4, 2)]
    torch.ops.aten._foreach_div_(tensors, [1.0, 2.0])
    torch.ops.aten._foreach_addcmul_(tensors, tensors, tensors, [1.0, 2.0])


STEPS = (resampled, pooled, normalised, recurrent, arranged, spectra, grouped_heads, several_tensors)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_a_step_of_an_older_torch_is_replayed(
    step: Callable[[], object], tmp_path: Path, executor: TorchExecutor
) -> None:
    failed = []
    for op in stripped(step, tmp_path).ops:
        outcome = attempt(executor, op, seed=0, options=ONCE)
        if outcome.status != "replayed" and (op.reason is None or op.reason.kind != "label, not an op"):
            failed.append(f"{op.name}: {outcome.reason}")
    assert failed == []


def test_reduced_dimensions_follow_from_the_output(tmp_path: Path) -> None:
    def step() -> None:
        torch.sum(torch.randn(3, 4, 5), dim=(0, 2), out=torch.empty(4))
        torch.argmax(torch.randn(3, 4), dim=0, keepdim=True, out=torch.empty(1, 4, dtype=torch.int64))

    plan = stripped(step, tmp_path)
    assert (value_of(plan, "aten::sum", "dim"), value_of(plan, "aten::sum", "keepdim")) == ((0, 2), False)
    assert (value_of(plan, "aten::argmax", "dim"), value_of(plan, "aten::argmax", "keepdim")) == (0, True)


def test_sizes_follow_from_what_is_read_next(tmp_path: Path) -> None:
    def step() -> None:
        F.interpolate(torch.randn(1, 2, 4, 4), size=(10, 6)).mul(2)
        F.pad(torch.randn(1, 2, 4, 4), (1, 2, 3, 0)).mul(2)
        torch.topk(torch.randn(3, 9), 4)[0].mul(2)

    plan = stripped(step, tmp_path)
    assert value_of(plan, "aten::upsample_nearest2d", "output_size") == (10, 6)
    assert sum(value_of(plan, "aten::constant_pad_nd", "pad")) == 6
    assert value_of(plan, "aten::topk", "k") == 4


def test_layers_and_directions_follow_from_the_weights(tmp_path: Path) -> None:
    plan = stripped(lambda: nn.LSTM(4, 6, 2, bidirectional=True)(torch.randn(5, 3, 4)), tmp_path)
    assert value_of(plan, "aten::lstm", "num_layers") == 2
    assert value_of(plan, "aten::lstm", "bidirectional") is True


def test_no_argument_has_two_rules() -> None:
    tables = (NETWORK_RULES, RESULT_RULES, WINDOW_RULES, LIST_RULES, TABLE_RULES)
    assert len({key for table in tables for key in table}) == sum(map(len, tables))


@pytest.mark.parametrize("pad", [(0, 0, 0, 3), (0, 1), (2, 2), (0, 0, 0, 0)])
def test_an_odd_padding_is_at_the_end_and_a_copy_pads_nothing(tmp_path: Path, pad: tuple[int, ...]) -> None:
    given = torch.rand(3, 4)
    plan = stripped(lambda: torch.constant_pad_nd(given, pad).exp(), tmp_path)
    assert value_of(plan, "aten::constant_pad_nd", "pad") == pad


@pytest.mark.parametrize("loss", [F.smooth_l1_loss, F.mse_loss])
def test_the_result_of_a_reduced_loss_is_resized_to_one_number(loss: Callable[..., Any], tmp_path: Path) -> None:
    plan = stripped(lambda: loss(torch.randn(9, 5), torch.randn(9, 5)), tmp_path)
    assert value_of(plan, "aten::resize_", "size") == ()


def test_unfolded_windows_have_the_size_that_is_written_inside(tmp_path: Path) -> None:
    plan = stripped(lambda: F.unfold(torch.randn(2, 3, 7, 9), 3), tmp_path)
    assert value_of(plan, "aten::resize_", "size") == (2, 27, 35)


def test_unique_neighbours_are_as_many_as_are_read_next(tmp_path: Path) -> None:
    plan = stripped(lambda: torch.unique_consecutive(torch.tensor([4, 4, 1, 1, 1, 7])).abs(), tmp_path)
    assert value_of(plan, "aten::resize_", "size") == (3,)


def test_the_gradient_of_a_bias_sums_over_all_but_the_channels(tmp_path: Path) -> None:
    """Of a batch of one, whose dimension may be summed over or not."""
    grad, source, weight = torch.randn(1, 6, 8, 8), torch.randn(1, 4, 8, 8), torch.randn(6, 4, 3, 3)
    backward = torch.ops.aten._slow_conv2d_backward.output_mask
    plan = stripped(lambda: backward(grad, source, weight, [3, 3], [1, 1], [1, 1], [True, True, True]), tmp_path)
    assert value_of(plan, "aten::sum", "dim") == (0, 2, 3)


def test_a_sum_over_a_dimension_of_one_keeps_the_others(tmp_path: Path) -> None:
    plan = stripped(lambda: torch.randn(3, 1).sum(1), tmp_path)
    assert value_of(plan, "aten::sum", "dim") == (1,)


def test_positions_and_spectra_have_types_of_their_own(tmp_path: Path) -> None:
    wave, edges = torch.randn(4, 16), torch.linspace(0, 1, 5)
    plan = stripped(lambda: torch.fft.rfft(wave).abs(), tmp_path)
    assert value_of(plan, "aten::empty", "dtype") == "torch.complex64"
    plan = stripped(lambda: torch.bucketize(wave, edges), tmp_path)
    assert value_of(plan, "aten::empty", "dtype") == "torch.int64"
    assert value_of(plan, "aten::empty", "size") == (0,)


REDUCTIONS = [
    (loss, reduction)
    for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.kl_div)
    for reduction in ("none", "mean", "sum")
    if reduction != "none" or loss not in (F.mse_loss, F.smooth_l1_loss)  # they call nothing
]


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize(("loss", "reduction"), REDUCTIONS)
def test_reductions_of_losses_follow_from_the_calls_inside(loss: Any, reduction: str, tmp_path: Path) -> None:
    """A sum was replayed as a mean."""
    x, y = torch.randn(6, 5, requires_grad=True), torch.rand(6, 5)
    plan = stripped(lambda: loss(x, y, reduction=reduction).sum().backward(), tmp_path)
    assert value_of(plan, f"aten::{loss.__name__}", "reduction") == ["none", "mean", "sum"].index(reduction)
