"""Calls that composites make inside, and those of a backward pass: sizes alone tell what was recorded in full."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.plan.build import build_plan
from opreplay.replay.resolve.guess.values import broadcast
from opreplay.traces import read_trace

X, SQUARE = torch.randn(4, 6, 8), torch.randn(8, 8)
GRID = torch.randint(0, 9, (4, 6))
IDS = torch.tensor([3, 1, 2, 0, 3])


def backward(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], object]:
    def step() -> None:
        make(X.clone().requires_grad_(True)).sum().backward()

    return step


def plans(step: Callable[[], object], folder: Path) -> tuple[ReplayPlan, ReplayPlan]:
    """The plan of a step with all metadata, and that with sizes and types alone."""
    step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    full = build_plan(read_trace(path, gradients=True), select="all")
    trace = json.loads(path.read_text())
    for event in trace["traceEvents"]:
        for column in ("Input Strides", "Concrete Inputs"):
            event.get("args", {}).pop(column, None)
    path.write_text(json.dumps(trace))
    return full, build_plan(read_trace(path, gradients=True), select="all")


def values(plan: ReplayPlan, name: str, argument: str) -> set[tuple[Any, Any]]:
    """(shape of the first tensor, value) of one argument of all calls of an op; sizes without -1."""
    found = set()
    for op in plan.ops:
        for arg in op.args if op.name == name else ():
            if arg.name == argument:
                own = next((meta.shape for one in op.args for meta in one.tensors if meta is not None), ())
                value = arg.value
                if isinstance(value, tuple) and -1 in value:
                    rest = -math.prod(own) // math.prod(n for n in value if isinstance(n, int))
                    value = tuple(rest if n == -1 else n for n in value)
                found.add((own, value))
    return found


CASES: dict[str, tuple[Callable[[], object], tuple[tuple[str, str], ...]]] = {
    "views for a product": (
        lambda: torch.matmul(X.view(2, 2, 6, 8), torch.randn(2, 1, 8, 5)),
        (("aten::reshape", "shape"), ("aten::expand", "size"), ("aten::_unsafe_view", "size")),
    ),
    "a square weight is turned": (lambda: F.linear(SQUARE, SQUARE), (("aten::as_strided", "size"),)),
    "one index": (lambda: X[IDS], (("aten::reshape", "shape"), ("aten::as_strided", "size"))),
    "an index behind": (lambda: X[:, IDS] * 2, (("aten::reshape", "shape"), ("aten::as_strided", "size"))),
    "parts of a cat": (
        lambda: torch.cat([GRID[:, :1].contiguous(), GRID, GRID], 1) * 2,
        (("aten::narrow", "dim"), ("aten::narrow", "length")),
    ),
    "a sum of two dimensions": (lambda: X.sum((0, 2)) * 2, (("aten::sum", "dim"), ("aten::as_strided", "size"))),
    "a sum that keeps them": (lambda: X.sum(1, keepdim=True), (("aten::sum", "dim"), ("aten::sum", "keepdim"))),
    "statistics of a norm": (lambda: F.layer_norm(X, (8,)), (("aten::view", "size"),)),
    "a transform's batch": (lambda: torch.fft.rfft(X), (("aten::reshape", "shape"), ("aten::as_strided_", "size"))),
    "a mask is expanded": (lambda: X.masked_fill(X[0] > 0, 0.0), (("aten::expand", "size"),)),
    "vectors in the other order": (
        lambda: torch.meshgrid(torch.arange(3), torch.arange(4), indexing="xy"),
        (("aten::expand", "size"),),
    ),
    "a part is written over": (
        lambda: X.clone().index_copy_(1, IDS[:2], X[:, :2].contiguous()),
        (("aten::as_strided", "size"),),
    ),
    "a range of integers": (lambda: torch.arange(7) + 1, (("aten::arange", "end"), ("aten::resize_", "size"))),
    "numbers": (lambda: torch.tensor([1, 2, 3]), (("aten::empty", "size"), ("aten::empty", "dtype"))),
    "flattened": (lambda: X.flatten(1) * 2, (("aten::flatten", "start_dim"),)),
    "windows": (lambda: X.unfold(2, 4, 2) * 2, (("aten::unfold", "size"), ("aten::unfold", "step"))),
    "chunks": (lambda: [t * 2 for t in X.chunk(3, 1)], (("aten::chunk", "chunks"),)),
    "a gradient is viewed back": (
        backward(lambda x: x.view(24, 8).t().reshape(2, 96)),
        (("aten::view", "size"), ("aten::reshape", "shape")),
    ),
    "a gradient is expanded": (backward(lambda x: x.sum(1)), (("aten::expand", "size"), ("aten::unsqueeze", "dim"))),
    "a gradient is permuted back": (
        backward(lambda x: x.permute(2, 0, 1) * 2),
        (("aten::permute", "dims"),),
    ),
    "a gradient of an indexing": (backward(lambda x: x[IDS]), (("aten::new_zeros", "size"),)),
    "a forward size by its gradient": (
        backward(lambda x: F.conv1d(x, torch.randn(5, 6, 3), stride=2)),
        (("aten::conv1d", "stride"), ("aten::convolution", "padding"), ("aten::convolution_backward", "stride")),
    ),
    "a transposed convolution": (
        backward(lambda x: F.conv_transpose1d(x, torch.randn(6, 5, 4), stride=2, padding=1)),
        (("aten::convolution", "transposed"), ("aten::convolution", "stride"), ("aten::convolution", "padding")),
    ),
    "a dilated one": (
        backward(lambda x: F.conv1d(x.repeat(1, 1, 5), torch.randn(5, 6, 3), dilation=3)),
        (("aten::convolution", "dilation"), ("aten::convolution_backward", "dilation")),
    ),
    "a repetition": (
        lambda: X[0].contiguous().repeat(3, 2, 1) * 2,
        (
            ("aten::unfold", "dimension"),
            ("aten::unfold", "size"),
            ("aten::as_strided", "size"),
            ("aten::expand", "size"),
            ("aten::permute", "dims"),
        ),
    ),
    "a roll": (lambda: torch.roll(X, (2, 3), (0, 2)), (("aten::roll", "shifts"), ("aten::roll", "dims"))),
    "a roll of all": (lambda: torch.roll(X, 7), (("aten::roll", "shifts"), ("aten::roll", "dims"))),
    "a stack": (lambda: torch.stack([X[0], X[1], X[2]]), (("aten::view", "size"),)),
    "indices of a mask": (lambda: torch.where(X > 0.5), (("aten::unbind", "dim"), ("aten::select", "dim"))),
    "scaling and halves of transforms": (
        lambda: torch.fft.irfft2(torch.fft.rfft2(X) * 2),
        (("aten::_fft_r2c", "onesided"), ("aten::_fft_r2c", "dim"), ("aten::_fft_c2r", "normalization")),
    ),
    "circular": (lambda: F.pad(X, (2, 2), mode="circular"), (("aten::new_empty", "size"),)),
    "a diagonal to write to": (
        lambda: torch.diag_embed(X, 1),
        (("aten::diagonal", "dim1"), ("aten::diagonal", "offset")),
    ),
    "a range of floating numbers": (
        lambda: (torch.arange(8.0) * 2, IDS[:3].unsqueeze(0)),
        (("aten::arange", "end"), ("aten::resize_", "size")),
    ),
    "images resampled back": (
        backward(lambda x: F.interpolate(x, 31, mode="linear")),
        (("aten::upsample_linear1d_backward", "input_size"),),
    ),
    "parts of a gradient": (
        backward(lambda x: torch.cat([x[:, :1], x], 1) * 2),
        (("aten::narrow", "dim"), ("aten::narrow", "length")),
    ),
    "grouped and transposed": (
        backward(lambda x: F.conv_transpose1d(x, torch.randn(6, 2, 4), torch.randn(4), stride=2, groups=2)),
        (("aten::convolution", "groups"), ("aten::convolution", "stride"), ("aten::convolution_backward", "groups")),
    ),
    "windows that move by one": (
        backward(lambda x: F.avg_pool1d(x.view(4, 1, 48), 4, 1)),
        (("aten::avg_pool1d", "kernel_size"),),
    ),
    "sparse gradients": (
        lambda: F.embedding(GRID, SQUARE.clone().repeat(2, 1).requires_grad_(True), sparse=True).sum().backward(),
        (("aten::embedding", "sparse"), ("aten::embedding_backward", "num_weights")),
    ),
    "images of the first layer": (
        lambda: (
            F.conv2d(torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3, requires_grad=True), padding=1).sum().backward()
        ),
        (("aten::convolution_backward", "output_mask"),),
    ),
    "a signal that is padded": (
        lambda: torch.fft.irfft(torch.fft.rfft(X, 32) * 2, 30) * 2,
        (("aten::fft_rfft", "n"), ("aten::fft_irfft", "n")),
    ),
    "a gated unit": (backward(lambda x: F.glu(x, 1)), (("aten::glu", "dim"), ("aten::glu_backward", "dim"))),
    "uneven pieces": (lambda: [t * 2 for t in X.split([1, 3, 2], 1)], (("aten::split_with_sizes", "split_sizes"),)),
    "one dimension made several": (
        lambda: X.unflatten(1, (2, 3)) * 2,
        (("aten::unflatten", "dim"), ("aten::unflatten", "sizes")),
    ),
    "noise for each row": (lambda: X * X.new_empty((4, 1, 1)).bernoulli_(0.9), (("aten::new_empty", "size"),)),
    "the largest few": (lambda: (X.topk(3), X[0] * 2)[0][0] * 2, (("aten::topk", "k"),)),
    "a quantile of rows": (lambda: torch.quantile(X, 0.3, dim=1) * 2, (("aten::quantile", "dim"),)),
    "a wide unit matrix": (lambda: torch.eye(3, 5) * 2, (("aten::eye", "n"), ("aten::eye", "m"))),
    "a loss for each": (
        backward(lambda x: F.nll_loss(x[:, :, 0], torch.tensor([1, 2, 3, 0]), reduction="none")),
        (("aten::nll_loss_forward", "reduction"),),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_sizes_alone_tell_what_is_called(case: str, tmp_path: Path) -> None:
    step, wanted = CASES[case]
    full, guessed = plans(step, tmp_path)
    for name, argument in wanted:
        recorded, found = values(full, name, argument), values(guessed, name, argument)
        assert found, (name, argument)
        assert found <= recorded, (name, argument)


def test_what_is_told_by_a_composite_stays_an_assumption(tmp_path: Path) -> None:
    _, guessed = plans(lambda: torch.matmul(X, torch.randn(4, 8, 5)), tmp_path)
    reshapes = [op for op in guessed.ops if op.name == "aten::reshape"]
    notes = {note.what for op in reshapes for note in op.assumptions if note.argument == "shape"}
    assert "aten::bmm reads sizes [4, 6, 8] inside aten::matmul" in notes


def test_element_types_of_a_list_come_from_what_is_written_inside(tmp_path: Path) -> None:
    full, _ = plans(lambda: torch.cat([GRID, GRID[:, :2].contiguous()], 1), tmp_path)
    (op,) = (op for op in full.ops if op.name == "aten::cat")
    assert [meta.dtype for meta in op.args[0].tensors if meta is not None] == ["int64", "int64"]


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax"])
def test_how_scatter_reduce_combines_is_told_by_its_gradient(reduce: str, tmp_path: Path) -> None:
    def step() -> None:
        source = torch.randn(9, requires_grad=True)
        torch.zeros(4).scatter_reduce(0, torch.arange(9) % 4, source, reduce=reduce).sum().backward()

    full, _ = plans(step, tmp_path)
    assert values(full, "aten::scatter_reduce", "reduce") == {((4,), reduce)}


SIZES = st.lists(st.sampled_from((1, 2, 3, 5)), max_size=4).map(tuple)


@given(st.lists(SIZES, min_size=1, max_size=3))
def test_common_sizes_are_those_of_torch(shapes: list[tuple[int, ...]]) -> None:
    try:
        expected = tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        assert broadcast(shapes) is None
    else:
        assert broadcast(shapes) == expected


def test_lengths_of_more_than_30_sequences_are_full_ones(tmp_path: Path) -> None:
    """Profiles lack lists of more than 30 numbers."""

    def step() -> None:
        scores = torch.randn(9, 32, 5, requires_grad=True).log_softmax(2)
        F.ctc_loss(scores, torch.randint(1, 5, (32, 4)), torch.full((32,), 9), torch.full((32,), 3)).backward()

    full, _ = plans(step, tmp_path)
    (op,) = (op for op in full.ops if op.name == "aten::_ctc_loss_backward")
    told = {arg.name: arg.value for arg in op.args}
    assert (told["input_lengths"], told["target_lengths"]) == ((9,) * 32, (4,) * 32)
    assert {"input_lengths", "target_lengths"} <= {note.argument for note in op.assumptions}


def test_a_scatter_that_forgets_what_was_there_is_a_maximum(tmp_path: Path) -> None:
    def step() -> None:
        torch.zeros(4).scatter_reduce_(0, torch.arange(9) % 4, torch.randn(9), reduce="amax", include_self=False)

    full, _ = plans(step, tmp_path)
    assert values(full, "aten::scatter_reduce_", "reduce") == {((4,), "amax")}
