"""Variants of a call that are bounded: how many elements, how much memory and time they may take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from opreplay.initializers.user_code import load_user_code
from opreplay.replay.check import variants
from opreplay.replay.check.bench import make_bench
from opreplay.replay.check.calling.calls import Bench
from opreplay.replay.check.cases import Case
from opreplay.replay.check.model import Setup
from opreplay.replay.check.points.gradient import gradient
from opreplay.replay.check.points.peak import too_much
from opreplay.replay.session.checking import check

pytestmark = pytest.mark.slow

CONVOLUTION = "aten::convolution(f32[2,8,12,12], f32[4,8,3,3], f32[4], [1,1], [1,1], [1,1], False, [0,0], 1)"
ATTENTION = "aten::scaled_dot_product_attention(f32[16,128], f32[16,128], f32[16,128])"
"""Of one head and batch: its scores grow with the square of the rows."""


_MADE: list[Bench] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Torch's settings are those of the process: who takes them gives them back."""
    yield
    while _MADE:
        _MADE.pop().executor.close()


def bench_of(call: str) -> Bench:
    name = call.partition("(")[0]
    bench, _ = make_bench(Setup(op=name, shapes=(call,), points=("correctness",), memory_bytes=1 << 30))
    _MADE.append(bench)
    return bench


def shapes(case: Case) -> list[list[int]]:
    return [list(meta.shape) for arg in case.op.args for meta in arg.tensors if meta is not None]


def test_sizes_that_belong_together_become_small_as_far_as_they_can() -> None:
    found = [shapes(case) for case in variants.small(bench_of(CONVOLUTION).first)]
    assert [[2, 5, 6, 6], [4, 5, 3, 3], [4]] in found


def test_derivatives_of_a_convolution_are_those_of_few_elements() -> None:
    found = check("aten::convolution", shapes=[CONVOLUTION], points=["gradient"], isolation="none")
    (gradcheck,) = [one for one in found.point("gradient").cases if one.case.startswith("gradcheck")]
    assert gradcheck.verdict == "pass"
    assert "f64[3,2,5,5], f64[4,2,5,5]" in gradcheck.case


def test_gradients_of_a_thousand_results_are_those_of_short_ones() -> None:
    bench = bench_of("aten::unbind.int(f32[4,32], 0)")
    primes = [one.case for one in gradient(bench) if one.case.startswith("prime sizes")]
    assert primes
    assert not [case for case in primes if "f32[1009,8072]" in case]  # one after the other: minutes


def test_a_case_is_left_out_where_memory_grows_with_the_square() -> None:
    bench = bench_of(ATTENTION)
    (huge,) = variants.huge(bench.first)
    assert shapes(huge) == [[32769, 128]] * 3
    assert "GB, estimated from smaller calls" in str(too_much(bench, huge))


def test_a_case_is_left_out_where_time_grows_with_the_square() -> None:
    bench = bench_of("aten::scaled_dot_product_attention(f32[1,2,16,8], f32[1,2,16,8], f32[1,2,16,8])")
    (rows,) = [case for case in variants.vary_sizes(bench.first) if case.kind == "many inner rows"]
    assert shapes(rows) == [[1, 2, 70001, 8]] * 3
    assert " s, estimated from smaller calls" in str(too_much(bench, rows))


def test_a_case_is_left_out_where_results_grow_with_the_square() -> None:
    bench = bench_of("aten::diag_embed(f32[16,32])")
    large = [case for case in variants.vary_sizes(bench.first) if case.smaller]
    assert [case.kind for case in large] == ["long rows", "huge"]
    assert all(too_much(bench, case) for case in large)


@pytest.mark.parametrize("call", ["aten::add.Tensor(f32[16,32], f32[16,32])", "aten::softmax.int(f32[16,32], 1)"])
def test_a_case_is_tried_where_memory_grows_with_the_elements(call: str) -> None:
    bench = bench_of(call)
    assert [too_much(bench, case) for case in variants.vary_sizes(bench.first) if case.smaller] == [None, None]


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        ("aten::neg(f32[16,32])", []),
        ("aten::neg(f32[16,16])", [[70001, 16]]),
        ("aten::neg(f32[16,1000])", [[70001, 5], [70001, 4]]),
        ("aten::neg(f32[1000,1000])", [[70001, 5]]),
        ("aten::neg(f32[2,3,16])", [[70001, 3, 16], [2, 70001, 16]]),
        ("aten::neg(f32[4,16,16])", [[70001, 5, 5], [70001, 4, 4], [4, 70001, 5]]),
        ("aten::linear(f32[16,512], f32[24,512])", [[70001, 6], [5, 6], [70001, 6], [4, 6]]),
    ],
)
def test_rows_become_more_than_a_launch_has_blocks(call: str, wanted: list[list[int]]) -> None:
    found = variants.many_rows(bench_of(call).first)
    assert [shape for case in found for shape in shapes(case)] == wanted


def test_one_tensor_stands_for_each_pair_that_looks_alike_and_for_all() -> None:
    case = bench_of("aten::addcmul(f32[16,32], f32[16,32], f32[16,32])").first
    kinds = {one.kind: one for one in variants.share_tensors(case)}
    assert list(kinds) == [
        "one tensor for self and tensor1",
        "one tensor for self and tensor2",
        "one tensor for tensor1 and tensor2",
        "one tensor for self and tensor1 and tensor2",
    ]
    text = kinds["one tensor for self and tensor1"].text
    assert "f32[16,32]@0, f32[16,32]@0, f32[16,32]" in text
    values = bench_of(text.partition(": ")[2]).arguments(kinds["one tensor for self and tensor1"]).values
    assert values["self"] is values["tensor1"]
    assert values["self"] is not values["tensor2"]


def test_no_tensor_that_is_written_to_stands_for_another() -> None:
    assert not list(variants.share_tensors(bench_of("aten::add_.Tensor(f32[16,32], f32[16,32])").first))


@pytest.mark.parametrize("call", ["aten::split.Tensor(f32[16,32], 4, 0)", "aten::unbind.int(f32[4,32], 0)"])
def test_a_number_of_results_that_follows_a_size_is_no_defect(call: str) -> None:
    found = check(call.partition("(")[0], shapes=[call], points=["dynamic shapes"], isolation="none")
    (point,) = found.points
    assert point.verdict == "pass", point.detail


HALVES = """
import torch
from torch import Tensor

@torch.library.custom_op("halves{name}::gate", mutates_args=())
def gate(x: Tensor) -> Tensor:
    if x.shape[-1] % {step}:
        raise ValueError("columns are not whole")
    one, other = x.chunk(2, dim=-1)
    result = one * other
    if result.shape[-1] > 64 and result.shape[-1] % 2:
        result[..., -1] = 0
    return result

def reference(x):
    one, other = x.chunk(2, dim=-1)
    if x.shape[-1] % {step}:
        raise ValueError("columns are not whole")
    return one * other
"""


@pytest.mark.parametrize("step", [2, 128])
def test_sizes_that_both_refuse_are_tried_as_multiples(tmp_path: Path, step: int) -> None:
    (tmp_path / f"gate{step}.py").write_text(HALVES.replace("{step}", str(step)).replace("{name}", str(step)))
    file = str(tmp_path / f"gate{step}.py")
    load_user_code(file, flag="--plugin")
    op, points = f"halves{step}::gate", ["correctness", "dtypes"]
    found = check(op, against=f"{file}:reference", shapes=["64x4096"], points=points, isolation="none")
    correct = found.point("correctness")
    if step == 2:
        assert "prime sizes: halves2::gate(f32[131,134])" in [one.case for one in correct.of("fail")]
        assert any(one.case.startswith("float16 at prime sizes") for one in found.point("dtypes").of("pass"))
    else:
        assert correct.verdict == "pass"
        assert correct.detail.endswith("no uneven row length was tried: all are multiples of 128")


def test_a_reference_without_a_default_gets_that_of_the_op(tmp_path: Path) -> None:
    (tmp_path / "scaled.py").write_text(
        "def scaled(x, factor: float = 3.0):\n    return x * factor\n\n\n"
        "def reference(x, factor):\n    return x * factor\n"
    )
    file = str(tmp_path / "scaled.py")
    found = check(
        f"{file}:scaled", against=f"{file}:reference", shapes=["4x8"], points=["correctness"], isolation="none"
    )
    assert found.point("correctness").verdict == "pass"


def test_defaults_of_the_op_are_given_as_python_values(tmp_path: Path) -> None:
    arguments = "(Tensor x, ScalarType dtype=6, Tensor? scale=None, str how='up')"
    torch.library.define("check_defaults::cast", f"{arguments} -> Tensor")
    torch.library.impl("check_defaults::cast", "default", lambda x, *_: x.to(torch.float32, copy=True))
    (tmp_path / "cast.py").write_text(
        "import torch\n\n\ndef cast(x, dtype, scale, how):\n"
        "    assert (dtype, scale, how) == (torch.float32, None, 'up')\n    return x.to(dtype)\n"
    )
    against = f"{tmp_path / 'cast.py'}:cast"
    found = check(
        "check_defaults::cast", against=against, shapes=["bf16[4,8]"], points=["determinism"], isolation="none"
    )
    assert found.point("determinism").verdict == "pass"


def test_a_number_that_equals_a_size_stays_where_the_call_is_refused_otherwise() -> None:
    cases = list(variants.vary_sizes(bench_of("aten::narrow(f32[32,8,4,16], 0, 0, 8)").first))
    length = {str(case.op.args[-1].value) for case in cases}
    assert len(length) > 1
    uneven = next(case for case in cases if case.kind == "uneven sizes")
    assert uneven.instead[0].op.args[-1].value == 8
    assert all(variants.elements(case) <= 1 << 22 for case in cases if case.kind in variants.MADE_UP)
