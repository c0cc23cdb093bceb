"""A few rows written into, or read from, a large tensor cost what these rows cost, whatever the size of the rest."""

from __future__ import annotations

import pytest

from opreplay.replay.ascend import load_device, lower, simulate_op
from opreplay.replay.ascend.cost.residency import Stream
from opreplay.replay.ir.kernel import KernelCall, TensorSpec
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.resolve.written.sweep import over_sizes, plan_of_calls

IN_PLACE = [
    # [batch, heads, positions, width]: one token of each sequence.
    "aten::index_copy_(bf16[32,8,n,128],2,i64[1],bf16[32,8,1,128])",
    "aten::index_add_(bf16[32,8,n,128],2,i64[1],bf16[32,8,1,128])",
    "aten::index_fill_(bf16[32,8,n,128],2,i64[1],0.0)",
    "aten::index_reduce_(bf16[32,8,n,128],2,i64[1],bf16[32,8,1,128],'amax')",
    "aten::scatter_(bf16[32,8,n,128],2,i64[32,8,1,128],bf16[32,8,1,128])",
    "aten::scatter_add_(bf16[32,8,n,128],2,i64[32,8,1,128],bf16[32,8,1,128])",
    "aten::scatter_reduce_(bf16[32,8,n,128],2,i64[32,8,1,128],bf16[32,8,1,128],'sum')",
    "aten::index_put_(bf16[32,8,n,128],[None,None,i64[1]],bf16[32,8,1,128])",
    "npu::scatter_update_(bf16[32,8,n,128],i64[32],bf16[32,8,1,128],-2)",
    "npu::npu_quant_scatter_(i8[32,8,n,128],i32[32],bf16[32,8,1,128],bf16[1,1,1,128])",
    # [batch, positions, heads, width]
    "aten::index_copy_(bf16[32,n,8,128],1,i64[1],bf16[32,1,8,128])",
    "aten::index_add_(bf16[32,n,8,128],1,i64[4],bf16[32,4,8,128])",
    "aten::index_put_(bf16[32,n,8,128],[i64[32],i64[32]],bf16[32,8,128])",
    "aten::scatter_(bf16[32,n,8,128],1,i64[32,1,8,128],bf16[32,1,8,128])",
    "aten::put_(bf16[32,n,8,128],i64[64],bf16[64])",
    "npu::scatter_update_(bf16[32,n,8,128],i64[32],bf16[32,1,8,128],1)",
    # [batch, heads, width, positions]: rows of single elements.
    "aten::index_copy_(bf16[32,8,128,n],3,i64[1],bf16[32,8,128,1])",
    "aten::scatter_(bf16[32,n],1,i64[32,1],bf16[32,1])",
    # Pages of 128 positions, or one row a position.
    "aten::index_put_(bf16[n//4,128,8,128],[i64[32],i64[32]],bf16[32,8,128])",
    "aten::index_copy_(bf16[n*32,8,128],0,i64[32],bf16[32,8,128])",
    "aten::index_add_(bf16[n*32,1024],0,i64[32],bf16[32,1024])",
    "npu::_npu_index_add_(bf16[n*32,1024],0,i64[32],bf16[32,1024])",
    "npu::npu_scatter_nd_update_(bf16[n*32,8,128],i64[32,1],bf16[32,8,128])",
    "npu::_npu_reshape_and_cache(bf16[32,8,128],bf16[32,8,128],bf16[n//4,128,8,128],bf16[n//4,128,8,128],i32[32])",
    "_C_cache_ops::reshape_and_cache_flash(bf16[32,8,128],bf16[32,8,128],bf16[n//4,128,8,128],bf16[n//4,128,8,128],"
    "i64[32],'auto',f32[1],f32[1])",
    "_C_cache_ops::concat_and_cache_mla(bf16[32,512],bf16[32,64],bf16[n//4,128,576],i64[32],'auto',f32[1])",
    "npu::npu_kv_rmsnorm_rope_cache(bf16[32,1,1,576],bf16[512],bf16[32,1,1,64],bf16[32,1,1,64],i64[32],"
    "bf16[n//4,128,1,64],bf16[n//4,128,1,512])",
]
READS = [
    "aten::index(bf16[n*32,8,128],[i64[32]])",
    "aten::index_select(bf16[n*32,8,128],0,i64[32])",
    "aten::index_select(bf16[32,8,n,128],2,i64[1])",
    "aten::embedding(bf16[n*32,1024],i64[32])",
    "aten::gather(bf16[32,8,n,128],2,i64[32,8,1,128])",
    "aten::gather(bf16[32,n],1,i64[32,1])",
    "aten::take(bf16[32,n],i64[32])",
    "aten::select_copy(bf16[32,8,n,128],2,0)",
    "aten::slice_copy(bf16[32,8,n,128],2,0,1)",
    "aten::narrow_copy(bf16[32,8,n,128],2,0,1)",
]
COPIES = [
    "aten::index_copy(bf16[32,8,n,128],2,i64[1],bf16[32,8,1,128])",
    "aten::index_put(bf16[32,n,8,128],[i64[32],i64[32]],bf16[32,8,128])",
    "aten::scatter(bf16[32,8,n,128],2,i64[32,8,1,128],bf16[32,8,1,128])",
    "aten::select_scatter(bf16[32,8,n,128],bf16[32,8,128],2,0)",
    "aten::slice_scatter(bf16[32,8,n,128],bf16[32,8,1,128],2,0,1)",
    "npu::npu_scatter_nd_update(bf16[n*32,8,128],i64[32,1],bf16[32,8,128])",
    "npu::scatter_update(bf16[32,8,n,128],i64[32],bf16[32,8,1,128],-2)",
]


def written(call: str, n: int) -> ReplayOp:
    (op,) = plan_of_calls(over_sizes([call], [f"n={n}"]), allow_imports={}, device="cpu")[0].ops
    return op


@pytest.mark.slow
@pytest.mark.parametrize("call", IN_PLACE + READS)
def test_rows_cost_the_same_in_a_tensor_of_any_size(call: str) -> None:
    short, long = written(call, 1024), written(call, 65536)
    for name in ("910b3", "910c", "950pr"):
        device = load_device(name)
        for l2 in ("cold", "warm", "sequence"):
            before, after = (simulate_op(op, device, l2=l2).time_us for op in (short, long))
            assert 0 < after <= 1.2 * before, f"{name} {l2}: {before:.1f} us among 1,024, {after:.1f} among 65,536"


@pytest.mark.parametrize("call", COPIES)
def test_out_of_place_writes_copy_the_tensor_once(call: str) -> None:
    device = load_device("910b3")
    op = written(call, 8192)
    size = 32 * 8 * 8192 * 128 * 2
    once_us = 2 * size / device.hbm_bytes_per_s * 1e6
    time_us = simulate_op(op, device, l2="cold").time_us
    assert 0.9 * once_us < time_us < 1.5 * once_us
    assert [call.type for call in lower(op).kernels].count("TensorMove") == 1


def test_more_rows_cost_more() -> None:
    device = load_device("910b3")
    call = "aten::index_copy_(bf16[32,8,16384,128],2,i64[n],bf16[32,8,n,128])"
    times = [simulate_op(written(call, n), device).time_us for n in (1, 64, 1024, 16384)]
    assert times == sorted(times)
    # All rows: no less than their bytes read and written.
    assert times[-1] >= 2 * 32 * 8 * 16384 * 128 * 2 / device.hbm_bytes_per_s * 1e6


def test_a_token_written_to_a_cache_of_fixed_size_as_measured() -> None:
    """Scatter in the decode of PaddleOCR-VL on a 910B2, public: 1.3 us of one sequence, 2.8 to 3.7 of eight."""
    device = load_device("910b2")
    for batch, measured_us in ((1, 1.3), (8, 3.4)):
        op = written(f"npu::scatter_update_(f16[{batch},2,n,128],i64[{batch}],f16[{batch},2,1,128],-2)", 4096)
        assert simulate_op(op, device).time_us == pytest.approx(measured_us, rel=0.5)


def test_a_lookup_leaves_in_l2_what_lay_there() -> None:
    row, table = TensorSpec(shape=(32, 64), dtype="float32"), TensorSpec(shape=(1 << 20, 64), dtype="float32")
    looked_up = KernelCall(type="GatherV2", inputs=(table,), outputs=(row,), attrs={"moved_bytes": 32 * 64 * 4})
    added = KernelCall(type="Add", inputs=(row,), outputs=())
    stream = Stream()
    stream.touch(added)
    stream.touch(looked_up)
    ((size, distance),) = stream.touch(added)
    assert size == 32 * 64 * 4
    assert distance is not None
    assert distance <= 4 * size


def test_pages_that_attention_does_not_name_come_from_memory_unless_they_were_read_just_before() -> None:
    query = TensorSpec(shape=(32, 64), dtype="float32")
    first = KernelCall(type="FusedInferAttentionScore", inputs=(query,), outputs=(query,), attrs={"moved_bytes": 10**9})
    stream = Stream()
    for layer in (0, 1):
        assert stream.touch(first, ["q"], [], beyond=layer)[-1] == (1e9 - 2 * 32 * 64 * 4, None)
    (_, _, (size, distance)) = stream.touch(first, ["q"], [], beyond=0)
    assert distance == pytest.approx(2 * size, rel=0.01)
    assert Stream().touch(KernelCall(type="Add", inputs=(query,), outputs=(query,)))[-1] == (32 * 64 * 4.0, None)
