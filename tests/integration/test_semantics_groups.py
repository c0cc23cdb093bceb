"""What real traces contain, from the recorded event to the result of the replayed call, group by group.

The events are those of public traces (H100, MI300, MTIA, NPU; torch 1.9 to 2.9), with smaller sizes. What one module
does alone is tested beside it; here a call has to arrive as it was made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from opreplay.replay.execute.executors.torch.device import TorchExecutor
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.plan.build import build_plan
from opreplay.replay.resolve.meta.check import check_op
from opreplay.replay.resolve.names import find_overload
from opreplay.replay.resolve.policy import Policy
from opreplay.traces import read_trace

pytestmark = pytest.mark.slow

NONE: tuple[list[int], str, list[int], str] = ([], "", [], "")
LIST = ([], "TensorList", [], "")


@pytest.fixture(scope="module")
def executor() -> Iterator[TorchExecutor]:
    made = TorchExecutor("cpu", lambda op: find_overload(op, Policy()), memory_bytes=10**8)
    yield made
    made.close()


@pytest.fixture
def planned(tmp_path: Path) -> Any:
    """name and arguments of one event → its op in the plan of a trace that holds nothing else."""

    def make(name: str, *args: Any, missing: tuple[str, ...] = ()) -> ReplayOp:
        columns = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
        recorded = {column: [arg[i] for arg in args] for i, column in enumerate(columns) if column not in missing}
        event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0, "args": recorded}
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
        (op,) = build_plan(read_trace(path), select="all").ops
        return op

    return make


@pytest.fixture
def replayed(planned: Any, executor: TorchExecutor) -> Any:
    """The same → what the replayed call returns."""

    def run(name: str, *args: Any, missing: tuple[str, ...] = ()) -> Any:
        op = planned(name, *args, missing=missing)
        assert op.reason is None, str(op.reason)
        return executor.run(executor.prepare(op, seed=0))

    return run


def t(
    *shape: int, dtype: str = "float", strides: tuple[int, ...] | None = None
) -> tuple[list[int], str, list[int], str]:
    dense = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return list(shape), dtype, dense if strides is None else list(strides), ""


def s(text: str) -> tuple[list[int], str, list[int], str]:
    return [], "Scalar", [], text


def ints(text: str) -> tuple[list[int], str, list[int], str]:
    return [], "ScalarList", [], text


def described(op: ReplayOp) -> dict[str, str]:
    return {found.argument: found.what for found in op.assumptions}


# 1. Levels of metadata, and labels among the ops


@pytest.mark.parametrize(
    "missing",
    [(), ("Input Strides",), ("Concrete Inputs",), ("Input Strides", "Concrete Inputs")],
    ids=["all", "no strides", "no values", "shapes and types"],
)
def test_every_level_of_metadata_that_has_shapes_is_replayed(replayed: Any, missing: tuple[str, ...]) -> None:
    assert replayed("aten::softmax", t(2, 3, 4), s("-1"), NONE, missing=missing).shape == (2, 3, 4)
    assert replayed("aten::transpose", t(2, 3, 4), s("1"), s("2"), missing=missing).shape == (2, 4, 3)
    assert replayed("aten::addmm", t(5), t(3, 4), t(4, 5), s("1"), s("1"), missing=missing).shape == (3, 5)


def test_without_shapes_the_reason_says_so(planned: Any) -> None:
    every = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
    assert str(planned("aten::mm", missing=every).reason) == "metadata missing: shapes"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("detach", "label, not an op"),
        ("detach_", "label, not an op"),
        ("AddmmBackward0", "label, not an op"),
        ("autograd::engine::evaluate_function: MmBackward0", "label, not an op"),
        ("torch::autograd::AccumulateGrad", "label, not an op"),
        ("TorchDynamo Cache Lookup", "label, not an op"),
        ("Pregraph bytecode", "label, not an op"),
        ("Torch-Compiled Region: 0/0", "label, not an op"),
        ("triton_poi_fused_add_cos_sin_0", "triton kernel"),
        ("triton_red_fused__to_copy_mean_1", "triton kernel"),
        ("record_param_comms", "collective"),
        ("nccl:all_reduce", "collective"),
        ("c10d::allreduce_", "collective"),
        ("_c10d_functional::all_gather_into_tensor", "collective"),
    ],
)
def test_labels_collectives_and_generated_kernels_are_classes_of_their_own(planned: Any, name: str, kind: str) -> None:
    assert planned(name, t(8)).reason.kind == kind


# 2. Spellings of element types


@pytest.mark.parametrize(
    ("spelled", "dtype"),
    [
        ("float", torch.float32),
        ("double", torch.float64),
        ("c10::Half", torch.float16),
        ("c10::BFloat16", torch.bfloat16),
        ("long int", torch.int64),
        ("long", torch.int64),
        ("int", torch.int32),
        ("short int", torch.int16),
        ("short", torch.int16),
        ("signed char", torch.int8),
        ("char", torch.int8),
        ("unsigned char", torch.uint8),
        ("unsigned short", torch.uint16),
        ("short unsigned int", torch.uint16),
        ("unsigned int", torch.uint32),
        ("unsigned long", torch.uint64),
        ("long unsigned int", torch.uint64),
        ("bool", torch.bool),
        ("c10::complex<float>", torch.complex64),
        ("c10::complex<double>", torch.complex128),
        ("c10::complex<c10::Half>", torch.complex32),
        ("c10::Float8_e4m3fn", torch.float8_e4m3fn),
        ("c10::Float8_e5m2", torch.float8_e5m2),
        ("c10::Float8_e4m3fnuz", torch.float8_e4m3fnuz),
        ("c10::Float8_e5m2fnuz", torch.float8_e5m2fnuz),
        ("c10::Float8_e8m0fnu", getattr(torch, "float8_e8m0fnu", None)),  # since 2.7
    ],
)
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_spelling_of_a_type_is_replayed(replayed: Any, spelled: str, dtype: torch.dtype | None) -> None:
    if dtype is None:
        pytest.skip("this torch lacks the type")
    made = replayed("aten::clone", t(3, 5, dtype=spelled), NONE)
    assert (made.dtype, made.shape) == (dtype, (3, 5))


def test_an_unknown_spelling_is_no_type_of_the_others(planned: Any) -> None:
    op = planned("aten::mm", t(2, 3, dtype="c10::BFloat16"), t(3, 4, dtype="c10::Float5_e1m3"))
    assert op.args == ()
    assert "c10::Float5_e1m3" in str(op.reason)


# 3. Shapes


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((), ()),
        ((0, 4), (4, 1)),
        ((3, 0), (1, 1)),
        ((4, 3), (1, 4)),
        ((4, 3), (0, 1)),
        ((4, 3), (0, 0)),
        ((6, 4), (1, 1)),
        ((2, 3, 4, 5), (60, 1, 15, 3)),
        ((4, 8), (24, 1)),
        ((1, 12, 64), (768, 64, 1)),
    ],
    ids=[
        "0-dim",
        "no rows",
        "no columns",
        "transposed",
        "expanded",
        "one element",
        "windows",
        "channels last",
        "part of a row",
        "size 1",
    ],
)
def test_strides_arrive_as_recorded(
    planned: Any, executor: TorchExecutor, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    op = planned("aten::detach", t(*shape, strides=strides))
    view = executor.run(executor.prepare(op, seed=0))
    assert (tuple(view.shape), view.stride()) == (shape, strides)
    added = executor.run(executor.prepare(planned("aten::add", t(*shape, strides=strides), s("1"), s("1")), seed=0))
    assert added.shape == shape


def test_a_wrapped_number_is_a_double_without_dimensions(replayed: Any, planned: Any) -> None:
    """Python's 0.125 in `scores * 0.125` is recorded as a tensor of double."""
    made = replayed("aten::mul", t(2, 3, dtype="c10::BFloat16"), t(dtype="double"))
    assert (made.dtype, made.shape) == (torch.bfloat16, (2, 3))
    assert planned("aten::mul", t(2, 3, dtype="c10::BFloat16"), t(dtype="double")).overload == "Tensor"


# 4. Scalars


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.", 0.0),
        ("-0.", 0.0),
        ("2.", 2.0),
        ("-3", -3.0),
        ("1e-05", 1e-5),
        ("inf", math.inf),
        ("-inf", -math.inf),
        ("True", 1.0),
        ("False", 0.0),
        ("3.4028234663852886e+38", 3.4028234663852886e38),
    ],
)
def test_scalars(replayed: Any, text: str, value: float) -> None:
    made = replayed("aten::fill_", t(4), s(text))
    assert made.tolist() == pytest.approx([value] * 4)


def test_not_a_number(replayed: Any) -> None:
    assert bool(replayed("aten::fill_", t(4), s("nan")).isnan().all())


def test_integers_that_stand_for_types_layouts_and_formats(replayed: Any) -> None:
    """TraceLens passes 15, 0 and 2 on as numbers."""
    made = replayed("aten::to", t(2, 3), s("15"), s("False"), s("True"), NONE)
    assert made.dtype is torch.bfloat16
    made = replayed("aten::_to_copy", t(2, 3, 4, 4), s("5"), s("0"), NONE, NONE, s("False"), s("2"))
    assert made.dtype is torch.float16
    assert made.is_contiguous(memory_format=torch.channels_last)
    made = replayed("aten::empty", ints("[2, 3]"), s("11"), s("0"), NONE, s("False"), NONE)
    assert (made.dtype, made.shape) == (torch.bool, (2, 3))


# 5. Lists


def test_lists_of_numbers(replayed: Any) -> None:
    assert replayed("aten::permute", t(2, 3, 4), ints("[2, 0, 1]")).shape == (4, 2, 3)
    assert replayed("aten::view", t(1), ints("[]")).shape == ()
    assert replayed("aten::sum", t(2, 3), ints("[]"), s("False"), NONE).shape == ()
    grads = replayed(
        "aten::native_layer_norm_backward",
        t(4, 8),
        t(4, 8),
        ints("[8]"),
        t(4, 1),
        t(4, 1),
        t(8),
        t(8),
        ints("[True, True, False]"),
    )
    assert [None if grad is None else grad.shape for grad in grads] == [(4, 8), (8,), None]
    assert replayed("aten::upsample_nearest2d", t(1, 2, 4, 4), NONE, ints("[2., 2.]")).shape == (1, 2, 8, 8)


def test_lists_of_tensors_take_the_type_of_their_siblings_or_the_trace(replayed: Any) -> None:
    pair = ([[2, 3], [4, 3]], "TensorList", [[3, 1], [3, 1]], "")
    assert replayed("aten::cat", pair, s("0")).shape == (6, 3)
    assert replayed("aten::stack", ([[2, 3]] * 4, "TensorList", [[3, 1]] * 4, ""), s("1")).shape == (2, 4, 3)
    made = replayed("aten::cat", pair, s("0"), t(6, 3, dtype="c10::BFloat16"))
    assert made.dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("args", "shape"),
    [
        ((t(16, 27, 27), NONE, t(16, 351)), (16, 27, 27)),
        ((t(100, 8), NONE, t(32, 8)), (100, 8)),
        ((t(2, 9, dtype="bool"), NONE, t(dtype="bool")), (2, 9)),
    ],
)
def test_index_tensors_recorded_as_nothing(replayed: Any, args: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    assert replayed("aten::index_put_", *args, s("False")).shape == shape


# 6. Strings, generators, absent optionals


def test_strings_generators_and_absent_optionals(planned: Any, replayed: Any) -> None:
    assert replayed("aten::gelu", t(4), NONE).shape == (4,)
    assert described(planned("aten::gelu", t(4), NONE))["approximate"].startswith("'none' (schema default)")
    assert replayed("aten::normal_", t(1000), s("0."), s("0.5"), NONE).std() == pytest.approx(0.5, rel=0.2)
    assert replayed("aten::clamp", t(4), s("0"), NONE).min() >= 0
    divided = replayed("aten::div_", t(6, dtype="long int"), t(6, dtype="long int"), NONE)
    assert divided.dtype is torch.int64


# 7. Schemas


def test_overloads_that_mix_tensors_and_lists_and_write_to_out(planned: Any, replayed: Any) -> None:
    assert planned("aten::max", t(3, 4), t(3, 4)).overload == "other"
    assert planned("aten::max", t(3, 4), s("1"), s("False")).overload == "dim"
    assert planned("aten::max", t(3, 4)).overload == ""
    assert planned("aten::add", t(3), t(3), s("1"), t(3)).overload == "out"
    assert planned("aten::split", t(6, 2), s("2"), s("0")).overload == "Tensor"
    assert planned("aten::split", t(6, 2), ints("[2, 4]"), s("0")).overload == "sizes"
    assert [part.shape[0] for part in replayed("aten::split", t(6, 2), ints("[2, 4]"), s("0"))] == [2, 4]


# 8. Resolution


def test_an_alias_of_a_vendor_op_and_a_library_that_is_not_here(planned: Any, replayed: Any) -> None:
    half = "c10::Half"
    made = replayed("_rocm_C::wvSpltK", t(64, 32, dtype=half), t(1, 32, dtype=half), s("120"))
    assert made.shape == (1, 64)
    assert planned("flashinfer::decode", t(4)).reason.kind == "library missing"
    assert str(planned("mylib::conv", t(4)).reason).startswith("policy")


# 9. Ops that only an accelerator has


@pytest.mark.parametrize(
    ("name", "args", "shape"),
    [
        (
            "aten::cudnn_convolution",
            (
                t(2, 3, 8, 8),
                t(4, 3, 3, 3),
                ints("[1, 1]"),
                ints("[2, 2]"),
                ints("[1, 1]"),
                s("1"),
                s("True"),
                s("False"),
                s("True"),
            ),
            (2, 4, 4, 4),
        ),
        (
            "aten::miopen_convolution",
            (
                t(2, 3, 8, 8),
                t(4, 3, 3, 3),
                NONE,
                ints("[1, 1]"),
                ints("[1, 1]"),
                ints("[1, 1]"),
                s("1"),
                s("False"),
                s("False"),
            ),
            (2, 4, 8, 8),
        ),
        (
            "aten::miopen_batch_norm",
            (t(2, 3, 4, 4), t(3), t(3), t(3), t(3), s("True"), s("0.1"), s("1e-05")),
            (2, 3, 4, 4),
        ),
        (
            "aten::_flash_attention_forward",
            (t(2, 8, 4, 16, dtype="c10::Half"),) * 3
            + (NONE, NONE, s("8"), s("8"), s("0."), s("False"), s("False"), s("0.25"), NONE, NONE, NONE, NONE),
            (2, 8, 4, 16),
        ),
        (
            "aten::_efficient_attention_forward",
            (t(2, 8, 4, 16),) * 3 + (NONE, NONE, NONE, NONE, NONE, s("0."), s("0"), s("False"), s("0.25"), NONE, NONE),
            (2, 8, 4, 16),
        ),
        (
            "aten::_scaled_dot_product_cudnn_attention",
            (t(2, 4, 8, 16, dtype="c10::Half"),) * 3 + (NONE, s("False"), s("0."), s("False"), s("False"), s("0.25")),
            (2, 4, 8, 16),
        ),
        ("aten::_fused_rms_norm", (t(4, 16), ints("[16]"), t(16), s("1e-06")), (4, 16)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_portable_equivalent_stands_in(
    replayed: Any, name: str, args: tuple[Any, ...], shape: tuple[int, ...]
) -> None:
    made = replayed(name, *args)
    assert (made[0] if isinstance(made, tuple | list) else made).shape == shape


# 10. Repetition


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("aten::mul_", (t(64), s("1.5"))),
        ("aten::add_", (t(64), t(64), s("1"))),
        ("aten::div_", (t(64), s("0.1"))),
        ("aten::exp_", (t(64),)),
        ("aten::addcmul_", (t(64), t(64), t(64), s("1"))),
    ],
)
def test_values_stay_finite_however_often_a_call_is_repeated(
    planned: Any, executor: TorchExecutor, name: str, args: tuple[Any, ...]
) -> None:
    prepared = executor.prepare(planned(name, *args), seed=0)
    for _ in range(20):
        results = [executor.run(prepared) for _ in range(prepared.max_calls or 1)]
        assert bool(results[-1].isfinite().all())
        executor.reset(prepared)


def test_backwards_get_what_a_forward_saves(planned: Any, executor: TorchExecutor) -> None:
    """The gradient of softmax is orthogonal to a constant only if the saved output adds up to one."""
    op = planned("aten::_softmax_backward_data", t(8, 32), t(8, 32), s("-1"), s("6"))
    made = executor.run(executor.prepare(op, seed=0))
    assert made.sum(-1).abs().max() < 1e-4


# 12. Aliasing


def test_an_op_in_place_gives_back_the_recorded_memory(planned: Any, executor: TorchExecutor) -> None:
    prepared = executor.prepare(planned("aten::relu_", t(4, 3, strides=(1, 4))), seed=0)
    first, second = executor.run(prepared), executor.run(prepared)
    assert first.data_ptr() == second.data_ptr()
    assert first.stride() == (1, 4)


def test_packed_attention_of_xformers_gets_lengths_that_fit(replayed: Any) -> None:
    half = "c10::Half"
    q, edges = t(48, 4, 16, dtype=half), t(4, dtype="int")
    out = replayed(
        "xformers_flash::flash_fwd",
        q,
        q,
        q,
        edges,
        edges,
        NONE,
        s("32"),
        s("32"),
        s("0."),
        s("0.25"),
        s("True"),
        s("-1"),
        s("-1"),
        s("False"),
        NONE,
    )[0]
    assert out.shape == (48, 4, 16)
    assert bool((out != 0).any(-1).all()), "every token attends"


def test_lists_of_offsets_are_integers_whatever_the_values_are(planned: Any, replayed: Any) -> None:
    args = (t(3, 10, 8), ([[4]], "TensorList", [[1]], ""), s("20"))
    op = planned("aten::_padded_dense_to_jagged_forward", *args)
    assert [meta.dtype for arg in op.args for meta in arg.tensors if meta is not None] == ["float32", "int64"]
    assert replayed("aten::_padded_dense_to_jagged_forward", *args).shape == (20, 8)


def test_half_to_float_that_was_not_recorded_is_not_assumed(planned: Any) -> None:
    half = t(4, 8, dtype="c10::Half")
    assert planned("aten::_softmax", half, s("1"), s("True")).resolved_by == "equivalent"
    assert planned("aten::_softmax", half, s("1"), s("True"), missing=("Concrete Inputs",)).resolved_by == "jit"


def tables_backward(tables: int, rows: int, width: int, batch: int, bag: int, state: int | None = None) -> list[Any]:
    """The arguments of `split_embedding_backward_codegen_rowwise_adagrad_cpu`, whose tables have `rows` rows each."""
    count = tables * batch * bag
    return [
        t(batch, tables * width), t(tables * rows * width), t(tables, dtype="int"), t(tables, dtype="long int"),
        t(tables + 1, dtype="int"), s(str(width)), t(tables + 1, dtype="long int"), s("10"), t(count, dtype="long int"),
        t(tables * batch + 1, dtype="long int"), s("0"), t(count), s("False"),
        t(tables * rows if state is None else state), t(tables, dtype="int"), t(tables, dtype="long int"), t(),
        s("1e-08"), s("0."), s("0"), s("0."), s("0"),
    ]  # fmt: skip


@pytest.mark.parametrize(("tables", "rows", "width"), [(1, 10, 128), (3, 60, 32), (2, 9, 8)])
def test_gradients_of_tables_write_rows_of_the_recorded_width(
    planned: Any, executor: TorchExecutor, tables: int, rows: int, width: int
) -> None:
    op = planned(
        "fbgemm::split_embedding_backward_codegen_rowwise_adagrad_cpu", *tables_backward(tables, rows, width, 64, 8)
    )
    prepared = executor.prepare(op, seed=0)
    names = [arg.name for arg in op.args]
    args = dict(zip(names, prepared.call.args, strict=False))
    assert args["D_offsets"].tolist() == [width * n for n in range(tables + 1)]
    assert args["hash_size_cumsum"].tolist() == [rows * n for n in range(tables + 1)]
    assert args["momentum1_offsets"].tolist() == [rows * n for n in range(tables)]
    before = args["host_weights"].clone()
    executor.run(prepared)
    changed = (args["host_weights"] != before).view(tables * rows, width).float().mean(1)
    assert int((changed > 0.9).sum()) == len(
        {(int(i), n // (64 * 8)) for n, i in enumerate(args["indices"])}  # the rows that were looked up, in full
    )


def test_gradients_of_index_weights_read_rows_of_the_recorded_width(planned: Any, executor: TorchExecutor) -> None:
    long = "long int"
    op = planned(
        "fbgemm::split_embedding_codegen_grad_indice_weights_cpu",
        t(1024, 128), t(1280), t(1, dtype=long), t(2, dtype="int"), t(8000, dtype=long), t(1025, dtype=long), t(0),
    )  # fmt: skip
    prepared = executor.prepare(op, seed=0)
    starts, indices = prepared.call.args[3:5]
    assert starts.tolist() == [0, 128]
    assert 1 < int(indices.max()) < 10
    assert executor.run(prepared).shape == (8000,)


def test_a_dry_run_refuses_gradients_that_no_tables_have(planned: Any) -> None:
    name = "fbgemm::split_embedding_backward_codegen_rowwise_adagrad_cpu"
    fitting = tables_backward(2, 9, 8, 4, 2)
    bags = [t(11, dtype="long int") if n == 9 else arg for n, arg in enumerate(fitting)]
    without_pooling = [s("2") if n == 10 else arg for n, arg in enumerate(fitting)]
    verdicts = [
        check_op(planned(name, *args), Policy()).status
        for args in (fitting, bags, without_pooling, tables_backward(2, 9, 8, 4, 2, state=1))
    ]
    assert verdicts == ["ok", "failed", "failed", "failed"]


def test_large_arguments_that_may_be_one_tensor_are_said_to_be_taken_for_two(planned: Any) -> None:
    def said(name: str, *args: Any) -> str:
        return "; ".join(note.what for note in planned(name, *args).assumptions if note.argument == "*")

    large, small, turned = t(512, 1024), t(8, 8), t(1024, 512, strides=(1, 1024))
    assert "self, other" in said("aten::mul", large, large)
    assert "query, key, value" in said(
        "aten::scaled_dot_product_attention", *[t(1, 8, 512, 64)] * 3, NONE, s("0."), s("False"), NONE, s("False")
    )
    for args in ((small, small), (large, t(512, 1024, dtype="c10::Half")), (t(512, 512), turned)):
        assert said("aten::mul", *args) == ""
    assert said("aten::add_", large, large, s("1")) == "", "a call that writes to one reads two"


def test_an_empty_list_is_not_told_from_one_too_long_to_be_recorded(planned: Any) -> None:
    described_list = planned("aten::stack", ([], "TensorList", [], ""), s("0"))
    assert described_list.reason is not None
    assert described_list.reason.kind == "metadata missing"
