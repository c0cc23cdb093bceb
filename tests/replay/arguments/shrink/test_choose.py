"""Ops over their budget: smaller pools leave the work as it is, slices leave a known part of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opreplay.replay.arguments.shrink.choose import shrink_to_limit
from opreplay.replay.arguments.shrink.flops import product_flops
from opreplay.replay.arguments.shrink.pools import dense_strides
from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp, Value
from opreplay.replay.ir.sizes import need_of
from opreplay.traces.model import TensorMeta
from tests.factories import meta

MB = 1_000_000


def op(name: str, *, out: tuple[TensorMeta, ...] | None = None, written: str = "", **args: object) -> ReplayOp:
    made = []
    for key, value in args.items():
        if isinstance(value, TensorMeta):
            made.append(ReplayArg(name=key, type="Tensor", tensors=(value,), mutated=key == written))
        elif isinstance(value, list):
            made.append(ReplayArg(name=key, type="Tensor[]", tensors=tuple(value), value=()))
        else:
            plain: Value = value  # type: ignore[assignment]
            made.append(ReplayArg(name=key, type="int[]" if isinstance(value, tuple) else "int", value=plain))
    return ReplayOp(
        id="0" * 12,
        name=name,
        count=1,
        recorded=Recorded(host_us_total=1, host_us_median=1),
        args=tuple(made),
        outputs=out,
    )


def shapes(made: ReplayOp) -> dict[str, tuple[int, ...]]:
    return {arg.name: arg.tensors[0].shape for arg in made.args if arg.type == "Tensor" and arg.tensors[0] is not None}


def test_an_op_that_fits_stays_as_it_is() -> None:
    small = op("aten::neg", self=meta(10))
    made = shrink_to_limit(small, MB)
    assert (made.op, made.part, made.assumptions) == (small, 1.0, ())


def test_the_cache_of_a_cache_write_shrinks_and_the_tokens_stay() -> None:
    """vLLM's piecewise traces write 8,192 tokens to caches of 224,304 blocks, 14.9 GB."""
    pool = meta(224304, 32, 8, 64, dtype="bfloat16")
    tokens = meta(8192, 8, 64, dtype="bfloat16", strides=(640, 64, 1))
    call = op(
        "_C_cache_ops::reshape_and_cache_flash",
        out=(),
        key=tokens,
        value=tokens,
        key_cache=pool,
        value_cache=pool,
        slot_mapping=meta(8192, dtype="int64"),
        k_scale=meta(1),
        v_scale=meta(1),
    )
    made = shrink_to_limit(call, 1000 * MB)
    assert need_of(made.op).total <= 1000 * MB
    found = shapes(made.op)
    assert found["key"] == (8192, 8, 64)
    assert found["key_cache"] == found["value_cache"]
    assert 8192 <= found["key_cache"][0] < 224304
    assert found["key_cache"][1:] == (32, 8, 64)
    assert made.part == 1.0, "the work is that of the tokens"
    assert {note.argument for note in made.assumptions} == {"key_cache", "value_cache"}


def test_scales_of_a_cache_shrink_with_it() -> None:
    pool = meta(100_000, 16, 8, 64, dtype="uint8")
    call = op(
        "aiter::pa_fwd_asm",
        out=(),
        Q=meta(4, 8, 64),
        K=pool,
        V=pool,
        block_tables=meta(4, 32, dtype="int32"),
        K_QScale=meta(100_000, 8, 16),
    )
    found = shapes(shrink_to_limit(call, 200 * MB).op)
    assert found["K"][0] == found["K_QScale"][0] < 100_000


def test_a_stack_of_key_and_value_cache_keeps_both() -> None:
    call = op(
        "vllm::unified_attention_like_cache",
        out=(),
        query=meta(4, 8, 64),
        kv_cache=meta(2, 100_000, 16, 8, 64),
        block_table=meta(4, 32, dtype="int32"),
    )
    found = shapes(shrink_to_limit(call, 500 * MB).op)
    assert found["kv_cache"][0] == 2
    assert 4 <= found["kv_cache"][1] < 100_000


def test_an_embedding_keeps_a_row_for_each_index() -> None:
    call = op("aten::embedding", out=(meta(512, 128),), weight=meta(10_000_000, 128), indices=meta(512, dtype="int64"))
    found = shapes(shrink_to_limit(call, 100 * MB).op)
    assert 512 <= found["weight"][0] < 10_000_000
    assert found["indices"] == (512,)


def test_a_mask_needs_the_whole_table() -> None:
    mask = meta(4_000_000, dtype="bool")
    call = op("aten::index", self=meta(4_000_000, 64), indices=[mask])
    assert shrink_to_limit(call, 100 * MB).op == call


@pytest.mark.parametrize(
    ("call", "size"),
    [
        (
            op(
                "aten::as_strided",
                self=meta(2, 100_000, 32, 8),
                size=(100_000, 32, 8),
                stride=(256, 8, 1),
                storage_offset=25_600_000,
            ),
            (390, 32, 8),
        ),
        (op("aten::view", self=meta(100_000, 256), size=(100_000, 32, 8)), (390, 32, 8)),
        (op("aten::view", self=meta(100_000, 8), size=(10_000, 10, 8)), (312, 10, 8)),
        (op("aten::_unsafe_view", self=meta(10_000, 10, 8), size=(100_000, 8)), (3120, 8)),
        (op("aten::expand", self=meta(100_000, 1), size=(100_000, 16)), (7_000, 16)),
        (op("aten::transpose", self=meta(100_000, 256), dim0=0, dim1=1), None),
        (op("aten::select", self=meta(2, 100_000, 256), dim=0, index=1), None),
    ],
    ids=lambda value: value.name if isinstance(value, ReplayOp) else "",
)
def test_a_view_of_a_smaller_tensor_takes_the_same_time(call: ReplayOp, size: tuple[int, ...] | None) -> None:
    """vLLM takes key and value cache out of one tensor of 15 GB."""
    made = shrink_to_limit(call, MB)
    assert need_of(made.op).total <= MB
    assert made.part == 1.0
    values = {arg.name: arg.value for arg in made.op.args}
    if size is not None:
        found: Any = values["size"]
        assert found[1:] == size[1:]
        assert found[0] < 100_000
    assert values.get("storage_offset", 0) == 0
    assert values.get("index", 1) == 1


def test_arguments_called_key_are_no_cache_elsewhere() -> None:
    big = meta(64, 12, 4096, 64)
    call = op("aten::scaled_dot_product_attention", out=(big,), query=big, key=big, value=big)
    made = shrink_to_limit(call, 400 * MB)
    assert shapes(made.op)["key"] == shapes(made.op)["query"]
    assert made.part < 1.0


@pytest.mark.parametrize(
    ("call", "cut"),
    [
        (op("aten::_softmax", out=(meta(8, 12, 512, 512),), self=meta(8, 12, 512, 512), dim=-1), {"self": 0}),
        (op("aten::_softmax", out=(meta(80, 12, 512),), self=meta(80, 12, 512), dim=0), {"self": 1}),
        (
            op("aten::bmm", out=(meta(96, 512, 512),), self=meta(96, 512, 64), mat2=meta(96, 64, 512)),
            {"self": 0, "mat2": 0},
        ),
        (op("aten::mm", out=(meta(46, 201088),), self=meta(46, 288), mat2=meta(288, 201088)), {"mat2": 1}),
        (op("aten::mm", out=(meta(201088, 46),), self=meta(201088, 288), mat2=meta(288, 46)), {"self": 0}),
        (
            op("aten::addmm", out=(meta(4, 99999),), self=meta(99999), mat1=meta(4, 288), mat2=meta(288, 99999)),
            {"self": 0, "mat2": 1},
        ),
        (
            op(
                "aten::convolution",
                out=(meta(64, 64, 112, 112),),
                input=meta(64, 3, 224, 224),
                weight=meta(64, 3, 7, 7),
            ),
            {"input": 0},
        ),
        (
            op(
                "aten::native_layer_norm",
                out=(meta(9000, 1024), meta(9000, 1), meta(9000, 1)),
                input=meta(9000, 1024),
                normalized_shape=(1024,),
                weight=meta(1024),
                bias=meta(1024),
            ),
            {"input": 0},
        ),
        (
            op(
                "aten::sum",
                out=(
                    meta(
                        1024,
                    ),
                ),
                self=meta(9000, 1024),
                dim=(0,),
                keepdim=0,
            ),
            {"self": 1},
        ),
    ],
    ids=lambda value: value.name if isinstance(value, ReplayOp) else "",
)
def test_independent_slices_are_cut(call: ReplayOp, cut: dict[str, int]) -> None:
    limit = need_of(call).total // 3
    made = shrink_to_limit(call, limit)
    before, after = shapes(call), shapes(made.op)
    assert need_of(made.op).total <= limit
    changed = {
        name: [d for d, (a, b) in enumerate(zip(before[name], after[name], strict=True)) if a != b] for name in before
    }
    assert {name: dims[0] for name, dims in changed.items() if dims} == cut
    assert all(len(dims) < 2 for dims in changed.values())
    for name, dim in cut.items():
        assert after[name][dim] == round(made.part * before[name][dim])
    assert "times are scaled up" in made.assumptions[0].what


@pytest.mark.parametrize(
    "call",
    [
        op("aten::_softmax", self=meta(100_000_000), dim=0),
        op("aten::native_layer_norm", input=meta(30_000_000), normalized_shape=(30_000_000,)),
        op("aten::cumsum", self=meta(100_000_000), dim=0),
        op("vendor::unknown", input=meta(100_000, 1000)),
        op("aten::matmul", self=meta(100_000_000), other=meta(100_000_000)),
    ],
)
def test_what_cannot_be_cut_is_left_alone(call: ReplayOp) -> None:
    made = shrink_to_limit(call, 100 * MB)
    assert (made.op, made.part) == (call, 1.0)


def test_a_tiny_part_may_not_stand_for_an_op() -> None:
    call = op("aten::neg", self=meta(1_000_000, 1000))
    assert shrink_to_limit(call, 10 * MB).part == 1.0


@pytest.mark.parametrize("other", [(), (512,), (12, 1, 512), (8, 1, 1, 512), (8, 12, 512, 512)])
def test_tensors_of_a_pointwise_op_still_broadcast(other: tuple[int, ...]) -> None:
    whole = (8, 12, 512, 512)
    call = op("aten::mul", out=(meta(*whole),), self=meta(*whole), other=meta(*other))
    made = shrink_to_limit(call, need_of(call).total // 3)
    found = shapes(made.op)
    out = made.op.outputs[0] if made.op.outputs else None
    assert out is not None
    assert torch.broadcast_shapes(found["self"], found["other"]) == out.shape == found["self"]
    assert math.prod(out.shape) == round(made.part * math.prod(whole))


def test_out_of_a_product_keeps_it_whole_where_it_would_have_to_be_cut_as_well() -> None:
    call = op("aten::mm", self=meta(50_000, 64), mat2=meta(64, 4), out_=meta(50_000, 4))
    assert shrink_to_limit(call, 8 * MB).part == 1.0


@pytest.mark.parametrize(("shape", "flops"), [((20,), 2 * 300 * 20), ((), 2 * 300 * 20)])
def test_a_weight_of_a_vector_or_a_number_is_one_column(shape: tuple[int, ...], flops: int) -> None:
    assert product_flops(op("aten::linear", input=meta(300, 20), weight=meta(*shape))) == flops


@pytest.mark.parametrize(
    ("call", "flops"),
    [
        (op("aten::mm", self=meta(300, 20), mat2=meta(20, 40)), 2 * 300 * 20 * 40),
        (op("aten::addmm", self=meta(40), mat1=meta(300, 20), mat2=meta(20, 40)), 2 * 300 * 20 * 40),
        (op("aten::linear", input=meta(3, 100, 20), weight=meta(40, 20)), 2 * 300 * 20 * 40),
        (op("aten::bmm", self=meta(6, 50, 20), mat2=meta(6, 20, 40)), 2 * 6 * 50 * 20 * 40),
        (
            op(
                "aten::scaled_dot_product_attention",
                query=meta(2, 4, 50, 16),
                key=meta(2, 4, 70, 16),
                value=meta(2, 4, 70, 16),
            ),
            4 * 8 * 50 * 70 * 16,
        ),
        (
            op("aten::convolution", out=(meta(2, 8, 10, 10),), input=meta(2, 4, 12, 12), weight=meta(8, 4, 3, 3)),
            2 * 2 * 8 * 100 * 4 * 9,
        ),
    ],
    ids=lambda value: value.name if isinstance(value, ReplayOp) else "",
)
def test_a_product_too_slow_for_this_machine_runs_in_part(call: ReplayOp, flops: int) -> None:
    """Prefill of 15,360 tokens is minutes of work for two cores, and fits into a gigabyte."""
    assert product_flops(call) == flops
    assert shrink_to_limit(call, 1000 * MB, flops).part == 1.0
    made = shrink_to_limit(call, 1000 * MB, flops / 2)
    assert made.part == pytest.approx(0.5)
    assert product_flops(made.op) == pytest.approx(flops / 2)
    assert "floating-point operations; times are scaled up" in made.assumptions[0].what


def test_gather_needs_no_more_rows_than_its_index_has() -> None:
    """SGLang gathers 15,360 rows of logits from 151,936."""
    call = op(
        "aten::gather",
        out=(meta(360, 256),),
        self=meta(151_936, 256),
        dim=0,
        index=meta(360, 256, dtype="int64", strides=(1, 0)),
    )
    assert 360 <= shapes(shrink_to_limit(call, 10 * MB).op)["self"][0] < 151_936


@given(st.permutations(range(4)), st.lists(st.integers(1, 5), min_size=4, max_size=4), st.integers(0, 3))
def test_dense_strides_keep_the_order_in_memory(order: list[int], sizes: list[int], expanded: int) -> None:
    strides, step = [0] * 4, 1
    for dim in order:
        strides[dim] = step
        step *= sizes[dim] * 3
    strides[expanded] = 0
    made = dense_strides(tuple(sizes), tuple(strides))
    assert made[expanded] == 0
    kept = [d for d in range(4) if d != expanded and sizes[d] > 1]
    reach = 1 + sum((sizes[d] - 1) * made[d] for d in kept)
    assert reach == math.prod(sizes[d] for d in kept)
    assert sorted(kept, key=lambda d: made[d]) == sorted(kept, key=lambda d: strides[d])
