"""Ops through torch on the CPU: what they get, whether they stay valid, and that nothing drifts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

from opreplay.replay.arguments.tensors import seed_of
from opreplay.replay.execute.attempt import attempt
from opreplay.replay.execute.executors.clocks import HostClock
from opreplay.replay.execute.executors.torch import caches
from opreplay.replay.execute.executors.torch.device import TorchExecutor, open_device
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.ir.model import Reason, Recorded, ReplayArg, ReplayOp
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.traces.errors import EnvironmentRefused, UsageError
from opreplay.traces.model import TensorMeta
from tests.factories import value as v

FAST = MeasureOptions(op_time_s=0.005, warmup_s=0.0, max_samples=8)


def find(op: ReplayOp) -> Callable[..., Any]:
    namespace, _, name = op.name.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), name), op.overload or "default")


@pytest.fixture
def executor() -> Iterator[TorchExecutor]:
    made = TorchExecutor("cpu", find, memory_bytes=10**9)
    yield made
    made.close()


def t(name: str, *shape: int, dtype: str = "float32", strides: Any = None, mutated: bool = False) -> ReplayArg:
    meta = TensorMeta(shape=shape, dtype=dtype, strides=strides)
    return ReplayArg(name=name, type="Tensor", tensors=(meta,), mutated=mutated)


def op(name: str, *args: ReplayArg, overload: str = "") -> ReplayOp:
    recorded = Recorded(host_us_total=1, host_us_median=1)
    return ReplayOp(id="a" * 12, name=f"aten::{name}", count=1, overload=overload, recorded=recorded, args=args)


def results(executor: TorchExecutor, made: ReplayOp) -> list[torch.Tensor]:
    out = executor.run(executor.prepare(made, seed=0))
    found = out if isinstance(out, (tuple, list)) else [out]
    return [item for item in found if isinstance(item, torch.Tensor)]


SOFTMAX = (v("dim", "int", -1), v("input_dtype", "ScalarType", "torch.float32"))
POOL = (
    v("kernel_size", "int[]", (2, 2)),
    v("stride", "int[]", (2, 2)),
    v("padding", "int[]", (0, 0)),
    v("dilation", "int[]", (1, 1)),
    v("ceil_mode", "bool", False),
)
INDEX_LIST = ReplayArg(name="indices", type="Tensor[]", tensors=(None, TensorMeta(shape=(3,), dtype="int64")))
MASK_LIST = ReplayArg(name="indices", type="Tensor[]", tensors=(TensorMeta(shape=(6, 4), dtype="bool"),))
EMBED = (v("padding_idx", "int", -1), v("scale_grad_by_freq", "bool", False))

VALID = [
    op("mm", t("self", 8, 8, dtype="bfloat16"), t("mat2", 8, 8, dtype="bfloat16")),
    op("add", t("self", 4, 1, strides=(1, 0)), t("other", 4, 4, strides=(1, 4)), overload="Tensor"),
    op("add", t("self", 0, 3), t("other"), v("alpha", "Scalar", 2, keyword_only=True), overload="Tensor"),
    op("log", t("self", 100)),
    op("sqrt", t("self", 100)),
    op("pow", t("self", 50), t("exponent", 50), overload="Tensor_Tensor"),
    op("div", t("self", 50), t("other", 50), overload="Tensor"),
    op("remainder", t("self", 50, dtype="int64"), t("other", 50, dtype="int64"), overload="Tensor"),
    op("acos", t("self", 50)),
    op("_softmax_backward_data", t("grad_output", 4, 9), t("output", 4, 9), *SOFTMAX),
    op("_log_softmax_backward_data", t("grad_output", 4, 9), t("output", 4, 9), *SOFTMAX),
    op(
        "max_pool2d_with_indices_backward",
        t("grad_output", 2, 3, 4, 4),
        t("self", 2, 3, 8, 8),
        *POOL,
        t("indices", 2, 3, 4, 4, dtype="int64"),
    ),
    op("embedding", t("weight", 17, 4), t("indices", 5, 7, dtype="int64"), *EMBED, v("sparse", "bool", False)),
    op(
        "embedding_dense_backward",
        t("grad_output", 5, 4),
        t("indices", 5, dtype="int64"),
        v("num_weights", "int", 3),
        *EMBED,
    ),
    op("index_select", t("self", 3, 50), v("dim", "int", 0), t("index", 99, dtype="int32")),
    op(
        "gather",
        t("self", 9, 2),
        v("dim", "int", -1),
        t("index", 9, 2, dtype="int64"),
        v("sparse_grad", "bool", False, True),
    ),
    op("scatter_add", t("self", 4, 5), v("dim", "int", 0), t("index", 2, 5, dtype="int64"), t("src", 2, 5)),
    op("index", t("self", 10, 5, 7), INDEX_LIST, overload="Tensor"),
    op("index", t("self", 6, 4, 2), MASK_LIST, overload="Tensor"),
    op("index_put_", t("self", 6, 4, mutated=True), MASK_LIST, t("values", 5), v("accumulate", "bool", False)),
    op(
        "nll_loss_forward",
        t("self", 20, 3),
        t("target", 20, dtype="int64"),
        v("weight", "Tensor"),
        v("reduction", "int", 1),
        v("ignore_index", "int", -100),
    ),
    op("one_hot", t("self", 9, dtype="int64"), v("num_classes", "int", 4)),
    op(
        "_embedding_bag_forward_only",
        t("weight", 11, 4),
        t("indices", 30, dtype="int64"),
        t("offsets", 6, dtype="int64"),
    ),
    op("multinomial", t("self", 3, 40), v("num_samples", "int", 5), v("replacement", "bool", False)),
    op("native_dropout_backward", t("grad_output", 60), t("mask", 60, dtype="bool"), v("scale", "float", 2.0)),
    op("masked_scatter", t("self", 10, 10), t("mask", 10, 10, dtype="bool"), t("source", 13)),
    op(
        "scaled_dot_product_attention",
        t("query", 1, 2, 6, 8),
        t("key", 1, 2, 9, 8),
        t("value", 1, 2, 9, 8),
        t("attn_mask", 1, 2, 6, 9, dtype="bool", strides=(0, 0, 9, 1)),
    ),
    op("searchsorted", t("sorted_sequence", 3, 10), t("self", 3, 4), overload="Tensor"),
    op(
        "repeat_interleave",
        t("repeats", 8, dtype="int64"),
        v("output_size", "int", 21, keyword_only=True),
        overload="Tensor",
    ),
    op("linalg_cholesky_ex", t("self", 3, 16, 16), v("upper", "bool", False, keyword_only=True)),
    op("topk", t("self", 4, 100), v("k", "int", 3)),
    op(
        "_to_copy",
        t("self", 4),
        v("dtype", "ScalarType", "torch.float16", True),
        v("layout", "Layout", None, True),
        v("device", "Device", "cuda:0", True),
    ),
    op("full", v("size", "int[]", (2, 3)), v("fill_value", "Scalar", "-inf")),
    op(
        "native_batch_norm_backward",
        t("grad_out", 4, 3, 5),
        t("input", 4, 3, 5),
        t("weight", 3),
        t("running_mean", 3),
        t("running_var", 3),
        t("save_mean", 3),
        t("save_invstd", 3),
        v("train", "bool", True),
        v("eps", "float", 1e-5),
        v("output_mask", "bool[]", (True, True, True)),
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("made", VALID, ids=lambda made: f"{made.name}{'.' if made.overload else ''}{made.overload}")
def test_op_runs_on_valid_values(executor: TorchExecutor, made: ReplayOp) -> None:
    for tensor in results(executor, made):
        if tensor.is_floating_point() and made.name != "aten::full":
            assert tensor.isfinite().all()
    outcome = attempt(executor, made, seed=0, options=FAST)
    assert outcome.status == "replayed", outcome.reason


IN_PLACE = [
    op("add_", t("self", 64, dtype="float16", mutated=True), t("other", 64, dtype="float16"), overload="Tensor"),
    op("mul_", t("self", 64, dtype="float16", mutated=True), t("other", 64, dtype="float16"), overload="Tensor"),
    op("div_", t("self", 64, dtype="float16", mutated=True), t("other", 64, dtype="float16"), overload="Tensor"),
    op("exp_", t("self", 64, mutated=True)),
    op("pow_", t("self", 64, mutated=True), v("exponent", "Scalar", 3), overload="Scalar"),
    op("mul_", t("self", 64, mutated=True), v("other", "Scalar", 1e9), overload="Scalar"),
]


@pytest.mark.parametrize("made", IN_PLACE, ids=lambda made: f"{made.name}.{made.overload}")
def test_in_place_op_does_not_drift(executor: TorchExecutor, made: ReplayOp) -> None:
    prepared = executor.prepare(made, seed=0)
    target = prepared.call.args[0]  # type: ignore[attr-defined]
    before = target.clone()
    for _ in range(50):
        for _ in range(prepared.max_calls or 0):
            executor.run(prepared)
        assert target.isfinite().all()
        executor.reset(prepared)
        assert torch.equal(target, before)


def test_additions_may_be_batched_and_explosions_not(executor: TorchExecutor) -> None:
    assert executor.prepare(IN_PLACE[0], seed=0).max_calls == 64
    assert (executor.prepare(IN_PLACE[3], seed=0).max_calls or 99) < 8
    assert executor.prepare(VALID[0], seed=0).max_calls is None


def written_list(name: str, *shapes: tuple[int, ...]) -> ReplayArg:
    metas = tuple(TensorMeta(shape=shape, dtype="float32") for shape in shapes)
    return ReplayArg(name=name, type="Tensor[]", tensors=metas, mutated=True)


OUT = ReplayArg(
    name="out", type="Tensor", tensors=(TensorMeta(shape=(64,), dtype="float32"),), mutated=True, keyword_only=True
)
BOUNDS = (v("min", "Scalar", -0.5), v("max", "Scalar", 0.5))
SETTLE = {
    "relu_": op("relu_", t("self", 64, mutated=True)),
    "clamp_": op("clamp_", t("self", 64, mutated=True), *BOUNDS),
    "copy_": op("copy_", t("self", 64, mutated=True), t("src", 64)),
    "fill_": op("fill_", t("self", 64, mutated=True), v("value", "Scalar", float("nan")), overload="Scalar"),
    "zero_": op("zero_", t("self", 64, dtype="bool", mutated=True)),
    "uniform_": op("uniform_", t("self", 64, mutated=True)),
    "exp out": op("exp", t("self", 64), OUT, overload="out"),
    "foreach": op(
        "_foreach_clamp_min_", written_list("self", (8, 8), (5,)), v("scalar", "Scalar", 0), overload="Scalar"
    ),
}
CHANGE = {
    "neg_": op("neg_", t("self", 64, mutated=True)),
    "dropout_": op("dropout_", t("self", 64, mutated=True), v("p", "float", 0.5), v("train", "bool", True)),
    "foreach": op("_foreach_neg_", written_list("self", (8, 8), (5,))),
    "transposed": op("t_", t("self", 3, 5, mutated=True)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTLE)
def test_an_op_that_leaves_what_its_first_call_left_is_never_reset_while_it_is_timed(
    executor: TorchExecutor, name: str
) -> None:
    prepared = executor.prepare(SETTLE[name], seed=0)
    assert (prepared.settles, prepared.max_calls) == (True, None)
    target = next(arg for arg in prepared.overload_call.args if isinstance(arg, torch.Tensor | list))
    if name == "relu_":
        executor.run(prepared)
        executor.reset(prepared)
        assert target.min() == 0.0
        prepared.reset()
        assert target.min() < 0.0, "checks of values begin with the first ones"
    assert attempt(executor, SETTLE[name], seed=0, options=FAST).status == "replayed"


@pytest.mark.parametrize("name", CHANGE)
def test_an_op_whose_second_call_changes_values_again_is_reset(executor: TorchExecutor, name: str) -> None:
    prepared = executor.prepare(CHANGE[name], seed=0)
    assert not prepared.settles
    assert prepared.max_calls


class ClockOfSorts(HostClock):
    """Says that a call on numbers that are not sorted takes 50 us, and 10 us on others, where `by_values`."""

    def __init__(self, *, by_values: bool) -> None:
        self.by_values = by_values
        super().__init__()

    def time_calls(self, call: Any, calls: int) -> float:
        values = call.args[0] if isinstance(call, partial) and call.args else None
        is_sorted = not isinstance(values, torch.Tensor) or bool((values[1:] >= values[:-1]).all())
        call()
        return 50.0 if self.by_values and not is_sorted else 10.0


def _sort_in_place(x: torch.Tensor) -> None:
    x.copy_(x.sort()[0])


@pytest.mark.parametrize("by_values", [True, False])
def test_an_op_of_a_user_is_reset_before_each_sample_where_its_time_goes_by_values(by_values: bool) -> None:
    """A sort in place finds another order once it was called."""
    with torch.library._scoped_library("opreplay_settle", "FRAGMENT") as library:
        library.define("sort_(Tensor(a!) x) -> ()")
        library.impl("sort_", _sort_in_place, "CPU")
        made = TorchExecutor("cpu", lambda _: torch.ops.opreplay_settle.sort_.default, memory_bytes=10**9)
        made.clock = ClockOfSorts(by_values=by_values)
        recorded = Recorded(host_us_total=1, host_us_median=1)
        args = (t("x", 64, mutated=True),)
        sort = ReplayOp(id="b" * 12, name="opreplay_settle::sort_", count=1, overload="", recorded=recorded, args=args)
        prepared = made.prepare(sort, seed=0)
        made.close()
    assert prepared.time_goes_by_values == by_values
    assert not prepared.settles


def test_touch_reads_only_what_a_reset_moves(executor: TorchExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr(caches, "_read", lambda tensor: read.append(tensor.numel()))
    executor.touch(executor.prepare(CHANGE["foreach"], seed=0))
    assert read == [64, 5]
    executor.touch(executor.prepare(CHANGE["transposed"], seed=0))
    assert read == [64, 5]


def test_no_reset_without_memory_for_a_copy_is_an_assumption() -> None:
    tight = TorchExecutor("cpu", find, memory_bytes=600)
    outcome = attempt(tight, op("neg_", t("self", 128, mutated=True)), seed=0, options=FAST)
    tight.close()
    assert outcome.status == "replayed"
    assert "not reset" in outcome.assumptions[-1].what


def arguments(made: TorchExecutor, which: ReplayOp, seed: int) -> list[bytes]:
    prepared = made.prepare(which, seed=seed)
    tensors = [a for a in prepared.call.args if isinstance(a, torch.Tensor)]  # type: ignore[attr-defined]
    return [bytes(a.contiguous().view(torch.uint8).numpy()) for a in tensors]


def test_same_seed_same_bytes_whatever_ran_before(executor: TorchExecutor) -> None:
    which = VALID[12]
    first = arguments(executor, which, 3)
    executor.prepare(VALID[0], seed=3)
    assert arguments(executor, which, 3) == first
    assert arguments(executor, which, 4) != first


def test_seed_depends_on_the_op() -> None:
    other = ReplayOp(id="b" * 12, name="aten::mm", count=1, recorded=VALID[0].recorded)
    assert seed_of(VALID[0], 0) != seed_of(other, 0)


def test_over_budget_is_refused_before_anything_is_allocated(executor: TorchExecutor) -> None:
    with pytest.raises(NotReplayable, match=r"limit 1\.0 GB"):
        executor.prepare(op("add", t("self", 2**40, strides=(0,)), t("other", 1), overload="Tensor"), seed=0)


def test_reason_of_the_plan_stands(executor: TorchExecutor) -> None:
    recorded = Recorded(host_us_total=1, host_us_median=1)
    stopped = ReplayOp(id="c" * 12, name="nccl:x", count=1, recorded=recorded, reason=Reason("collective"))
    with pytest.raises(NotReplayable, match="collective"):
        executor.prepare(stopped, seed=0)


def test_initializer_that_raises_stops_its_op(executor: TorchExecutor) -> None:
    broken = op("index_select", t("self", 3, 4), t("index", 2, dtype="int64"))
    outcome = attempt(executor, broken, seed=0, options=FAST)
    assert outcome.status == "failed"
    assert str(outcome.reason).startswith("failed: initializer index: aten::index_select: dim is unknown")


def test_wrong_arguments_are_a_reason(executor: TorchExecutor) -> None:
    outcome = attempt(executor, op("mm", t("self", 2, 3), t("mat2", 2, 3)), seed=0, options=FAST)
    assert outcome.status == "failed"
    assert "RuntimeError" in str(outcome.reason)


def test_initializer_and_assumptions_are_reported(executor: TorchExecutor) -> None:
    outcome = attempt(executor, VALID[12], seed=0, options=FAST)
    assert outcome.initializer == "index"
    assert [(a.argument, a.what) for a in outcome.assumptions] == [("indices", "uniform in [0, 17)")]


def test_devices_are_named_or_refused() -> None:
    assert str(open_device("cpu")) == "cpu"
    for nonsense in ("toaster", "meta", ""):
        with pytest.raises(UsageError):
            open_device(nonsense)
    with pytest.raises(EnvironmentRefused, match="cuda:97") as caught:
        open_device("cuda:97")
    assert "doctor" in caught.value.hint


def test_close_restores_the_settings_of_torch() -> None:
    threads = torch.get_num_threads()
    made = TorchExecutor("cpu", find, memory_bytes=1, threads=1)
    assert torch.get_num_threads() == 1
    assert not torch.is_grad_enabled()
    made.close()
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled()


def test_times_agree_with_torch_benchmark() -> None:
    """Fastest samples and a single thread, since other load on the machine must not fail this test."""
    from torch.utils.benchmark import Timer

    made = op("sin", t("self", 50_000))
    executor = TorchExecutor("cpu", find, memory_bytes=10**9, threads=1)
    prepared = executor.prepare(made, seed=0)
    ratios: list[float] = []
    while len(ratios) < 12 and not any(0.85 < ratio < 1.15 for ratio in ratios):
        outcome = attempt(executor, made, seed=0, options=MeasureOptions(op_time_s=0.1, cache="warm"))
        assert outcome.measurement is not None
        timer = Timer("call()", globals={"call": prepared.call}, num_threads=1)
        theirs = min(timer.timeit(outcome.measurement.calls_per_sample).mean for _ in range(50))
        ratios.append(outcome.measurement.min_us / (theirs * 1e6))
    executor.close()
    assert any(0.85 < ratio < 1.15 for ratio in ratios), ratios


@pytest.mark.parametrize("memory_bytes", [10**9, 6000])
def test_an_op_that_changes_a_shape_in_place_gets_the_first_shape_back(memory_bytes: int) -> None:
    """A second squeeze_ of the same tensor has no dimension 1 left; where memory is short there is no copy either."""
    made = TorchExecutor("cpu", find, memory_bytes=memory_bytes)
    prepared = made.prepare(
        op("squeeze_", t("self", 1000, 1, mutated=True), v("dim", "int", 1), overload="dim"), seed=0
    )
    for _ in range(3):
        assert made.run(prepared).shape == (1000,)
        made.reset(prepared)
    assert prepared.max_calls == 1
    made.close()
