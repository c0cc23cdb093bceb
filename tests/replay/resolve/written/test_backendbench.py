"""Op traces of BackendBench: what is written is read again as the same calls, and whatever else is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import opreplay
from opreplay.replay.export.tritonbench import input_configs, log_text
from opreplay.replay.export.whole import whole_arguments
from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.ir.notation import TorchName
from opreplay.replay.plan.build import build_plan
from opreplay.replay.plan.inputs import BACKENDBENCH, plan_dialect
from opreplay.replay.resolve.by_argument_name import resolve_named
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.resolve.written import backendbench
from opreplay.replay.resolve.written.backendbench import parse_arguments, read_backendbench, written_calls
from opreplay.traces import read_trace
from opreplay.traces.errors import FormatError, UsageError
from opreplay.traces.model import TensorMeta, contiguous_strides
from opreplay.traces.samples import SAMPLES, sample_path

PUBLIC = (
    "h100_owlv2_large",
    "mi210_gpu_only",
    "mi300_resnet_ddp_act_checkpoint",
    "mi300_sglang_prefilldecode",
    "mi300_vllm_piecewise_capture",
    "npu_alexnet_trace_view",
    "param_linear_et",
    "param_resnet_kineto",
)


def whole(op: ReplayOp) -> tuple[Any, ...]:
    """What is called and with what, but for how arguments lie in memory, which the format does not say."""

    def known(meta: TensorMeta | None) -> tuple[Any, ...] | None:
        strides = meta and (contiguous_strides(meta.shape) if meta.strides is None else meta.strides)
        return meta and (meta.shape, meta.dtype, strides)

    args = tuple((arg.name, tuple(map(known, arg.tensors)), arg.value) for arg in whole_arguments(op))
    return op.called, op.overload, op.resolved_by, args


def calls_of(plan: ReplayPlan) -> Counter[tuple[Any, ...]]:
    calls: Counter[tuple[Any, ...]] = Counter()
    for op in plan.ops:
        if op.reason is None:
            calls[whole(op)] += op.count
    return calls


def check(plan: ReplayPlan, folder: Path) -> None:
    exported = input_configs(plan, "[1, 4]")
    path = folder / "ops.txt"
    path.write_text(log_text(exported))
    read = resolve_named(read_backendbench(path), Policy())
    assert log_text(input_configs(read, "[1, 4]")) == path.read_text()
    unnamed = {meta.dtype for op in plan.ops for arg in op.args for meta in arg.tensors if meta} - set(
        backendbench.DTYPES.values()
    )
    sayable = [
        op
        for op in plan.ops
        if op.name not in exported.left_out.get("no schema here", {})
        and not any(meta and meta.dtype in unnamed for arg in op.args for meta in arg.tensors)
    ]
    assert calls_of(read) == calls_of(msgspec.structs.replace(plan, ops=tuple(sayable)))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_samples_survive(name: str, tmp_path: Path) -> None:
    check(build_plan(read_trace(sample_path(name)), select="all"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLIC)
def test_public_traces_survive(name: str, shared_traces: Path, tmp_path: Path) -> None:
    check(build_plan(read_trace(shared_traces / f"{name}.json.gz"), select="all"), tmp_path)


def test_a_file_as_the_project_shows_it(tmp_path: Path) -> None:
    path = tmp_path / "ops"
    path.write_text(
        "Operator: aten.add.Tensor\n"
        "cnt: 42, ((T([10, 20], f16), T([10, 20], f16)), {})\n"
        "cnt: 0, ((T([5, 5], f32, [1, 5]), 3), {'alpha': 2})\n\n"
        "Operator: aten._softmax.default\n"
        "cnt: 2, ((T([4, 8], f32, stride=(1, 4)), -1, False,), {})\n"
        "cnt: 3, ((T([4, 8], f32, stride=(1, 4)), -1, False), {})\n"
        "Operator: aten.nothing.default\ncnt: 1, ((), {})\n"
        "Operator: aten.add.Tensor\ncnt: 1, ((ST([3], f32, torch.sparse_coo, True), 1), {})\n"
    )
    assert plan_dialect(str(path)) is BACKENDBENCH
    plan = opreplay.plan(str(path))
    add, made_up, first, second, unknown, sparse = plan.ops
    assert (add.name, add.overload, add.count, add.resolved_by) == ("aten::add", "Tensor", 42, "jit")
    assert made_up.args[0].tensors == (TensorMeta(shape=(5, 5), dtype="float32", strides=(1, 5)),)
    assert [arg.value for arg in made_up.args] == [None, 3, 2]
    assert (first.count, second.count, first.args) == (2, 3, second.args)
    assert [op.reason and op.reason.kind for op in (unknown, sparse)] == ["library missing", "layout not recorded"]
    again = log_text(input_configs(plan, "[1, 4]"))
    assert "cnt: 0, ((T([5, 5], f32, [1, 5]), 3), {'alpha': 2})" in again
    assert "cnt: 5, ((T([4, 8], f32, [1, 4]), -1, False), {})" in again
    texts, refused = written_calls(path)
    assert len(texts) == 3
    assert refused.total() == 2
    assert opreplay.op(texts[0])().shape == (10, 20)


def test_equal_lines_count_together(tmp_path: Path) -> None:
    path = tmp_path / "ops.txt"
    path.write_text("Operator: aten.relu.default\n" + "".join(f"cnt: {n}, ((T([4], f32),), {{}})\n" for n in (0, 7, 2)))
    (op,) = read_backendbench(path).ops
    assert (op.count, op.origin) == (9, None)


@pytest.mark.parametrize(
    ("text", "args", "kwargs"),
    [
        ("((1, -2, 1.5, 1e-05, .5), {})", (1, -2, 1.5, 1e-05, 0.5), {}),
        ("((True, None, [1, [2, 3]], ()), {})", (True, None, [1, [2, 3]], []), {}),
        ("((1+2j, -1-2j, 3j, complex('nan+1j')), {})", (1 + 2j, -1 - 2j, 3j), {}),
        (
            "(('it\\'s', \"a\", 'ö'), {'device': device(type='cuda', index=0)})",
            ("it's", "a", "ö"),
            {"device": "cuda:0"},
        ),
        ("((inf, -inf, float('-inf')), {})", (float("inf"), float("-inf"), float("-inf")), {}),
        (
            "((bf16, th.float32, torch.strided), {'dtype': f16})",
            (TorchName("torch.bfloat16"), TorchName("torch.float32"), TorchName("torch.strided")),
            {"dtype": TorchName("torch.float16")},
        ),
    ],
)
def test_values(text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    call = parse_arguments("aten::x", text)
    assert call.args[: len(args)] == args
    assert [type(value) for value in call.args[: len(args)]] == [type(value) for value in args]
    assert call.kwargs == kwargs


@pytest.mark.parametrize(
    "text",
    [
        "((__import__('os').system('true'),), {})",
        "((T.__class__,), {})",
        "((lambda: 1,), {})",
        "((1 if 1 else 2,), {})",
        "((2**9999,), {})",
        "((1 + 1,), {})",
        "((- - 1,), {})",
        "((-True,), {})",
        "((f'{1}',), {})",
        "((b'x',), {})",
        "((" + "[" * 1000 + "]" * 1000 + ",), {})",
        "((" + "-" * 90_000 + "1,), {})",
        "((" + "1," * 90_000 + "), {})",
        "((99999999999999999999999,), {})",
        "((T([1], f32), T([-1], f32)), {})",
        "((T([1], f8),), {})",
        "((T([1, 2], f32, [1]),), {})",
        "((T([1], f32, [1], 1),), {})",
        "((T([9223372036854775808], f32),), {})",
        "((T([1], f32, device=1),), {})",
        "(({'a': 1},), {})",
        "((1,), {'a': 1, 'a': 2})",
        "((1,), {1: 2})",
        "((1,), {}",
        "((1,), {}) x",
        "((1 2), {})",
        "(('\\ud800',), {})",
        "((open('x'),), {})",
        "((device(kind='cuda'),), {})",
        "((float('1'),), {})",
        "((complex('x'),), {})",
    ],
)
def test_nothing_but_the_grammar(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        parse_arguments("aten::x", text)
    path = tmp_path / "ops.txt"
    path.write_text(f"Operator: aten.relu.default\ncnt: 1, {text}\n")
    with pytest.raises(FormatError, match="line 2"):
        read_backendbench(path)


@pytest.mark.parametrize(
    "text", ["cnt: 1, ((1,), {})", "Operator: x\n", "Operator: aten.relu\ncnt: x, ((), {})", "Operator: a.b; c"]
)
def test_files_that_are_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "ops.txt"
    path.write_text(text)
    with pytest.raises(FormatError):
        read_backendbench(path)


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ops.txt"
    path.write_text("Operator: aten.relu.default\ncnt: 1, ((T([4], f32),), {})\ncnt: 1, ((T([5], f32),), {})\n")
    monkeypatch.setattr(backendbench, "MAX_CALLS", 1)
    with pytest.raises(FormatError, match="more than 1"):
        read_backendbench(path)
    monkeypatch.setattr(backendbench, "MAX_FILE_BYTES", 10)
    with pytest.raises(FormatError, match="over the limit"):
        read_backendbench(path)
    with pytest.raises(FormatError, match="cannot read"):
        read_backendbench(tmp_path / "absent")
    path.write_bytes(b"Operator: \xff")
    with pytest.raises(FormatError, match="over the limit of 10"):
        read_backendbench(path)


SIZES = st.integers(0, 2**40)
TENSORS = st.lists(SIZES, max_size=4).flatmap(
    lambda shape: st.builds(
        TensorMeta,
        shape=st.just(tuple(shape)),
        dtype=st.sampled_from(sorted(backendbench.DTYPES.values())),
        strides=st.tuples(*[SIZES] * len(shape)),
    )
)
NUMBERS = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.complex_numbers(allow_nan=False)
CALLS = st.one_of(
    st.tuples(st.just("aten::cat"), st.tuples(st.lists(TENSORS, min_size=1, max_size=3), st.integers(-4, 4))),
    st.tuples(st.just("aten::gelu"), st.tuples(TENSORS, st.from_regex(r"[a-z_,>-]{0,12}", fullmatch=True))),
    st.tuples(st.just("aten::add.Tensor"), st.tuples(TENSORS, TENSORS | NUMBERS, NUMBERS)),
    st.tuples(st.just("aten::sum.dim_IntList"), st.tuples(TENSORS, st.lists(st.integers(-4, 4), max_size=3))),
    st.tuples(st.just("aten::index.Tensor"), st.tuples(TENSORS, st.lists(TENSORS | st.none(), min_size=1, max_size=3))),
    st.tuples(st.just("aten::clamp"), st.tuples(TENSORS, NUMBERS | st.none(), NUMBERS | st.none())),
    st.tuples(st.just("aten::to.dtype"), st.tuples(TENSORS, st.just(TorchName("torch.bfloat16")), st.booleans())),
)


def literal(value: Any) -> str:
    if isinstance(value, TensorMeta):
        short = {name: short for short, name in backendbench.DTYPES.items()}[value.dtype]
        return f"T({list(value.shape)}, {short}, {list(value.strides or ())})"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, complex):
        return f"complex('{value}')"
    return str(value) if isinstance(value, TorchName) else repr(value)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(CALLS, st.integers(0, 10**9)), min_size=1, max_size=5))
def test_any_calls_survive(tmp_path: Path, calls: list[tuple[tuple[str, tuple[Any, ...]], int]]) -> None:
    lines: list[str] = []
    for (name, args), count in calls:
        by_place = args if name != "aten::add.Tensor" else args[:2]
        rest = "" if name not in ("aten::add.Tensor", "aten::gelu") else f"'alpha': {literal(args[-1])}"
        if name == "aten::gelu":
            by_place, rest = args[:1], f"'approximate': {literal(args[1])}"
        written = name.replace("::", ".") + ("" if "." in name else ".default")
        places = "".join(f"{literal(arg)}, " for arg in by_place)
        lines += [f"Operator: {written}", f"cnt: {count}, (({places}), {{{rest}}})"]
    path = tmp_path / "ops.txt"
    path.write_text("\n".join(lines))
    read = resolve_named(read_backendbench(path), Policy())
    assert [op.reason for op in read.ops] == [None] * len(read.ops)
    exported = input_configs(read, "[1, 4]")
    assert sum(sum(counts.values()) for counts in exported.ops.values()) == sum(count for _, count in calls)
    path.write_text(log_text(exported))
    again = resolve_named(read_backendbench(path), Policy())
    assert calls_of(again) == calls_of(read)
    assert log_text(input_configs(again, "[1, 4]")) == log_text(exported)
