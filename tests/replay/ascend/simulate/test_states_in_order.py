"""Cache states in the order of what they leave in L2, and calls without a single element."""

from __future__ import annotations

import pytest

from opreplay.replay.ascend import load_device
from opreplay.replay.ascend.lowering import lower
from opreplay.replay.ascend.simulate.op import MOST_BELOW_WARM, simulate_op
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.resolve.written.sweep import Written, plan_of_calls
from opreplay.replay.results.records import L2State

ROWS = (3, 300, 4096, 131072)
CALLS = (
    "aten::nonzero(bool[n,1024])",
    "aten::masked_select(f32[n,256],bool[n,256])",
    "aten::scatter_add(f32[n,256],0,i64[n,256],f32[n,256])",
    "aten::index_add(f32[n,256],0,i64[n],f32[n,256])",
    "aten::index_put(f32[n,256],[i64[n]],f32[n,256])",
    "aten::index_select(f32[n,512],0,i64[n])",
    "aten::gather(f32[n,512],1,i64[n,512])",
    "aten::embedding_bag(f32[n,256],i64[n],i64[64])",
    "aten::topk(bf16[n,4096],50)",
    "aten::topk(f32[1,n],3)",
    "aten::sort(f32[n,512])",
    "aten::argmax(f32[n,1024],1)",
    "aten::logsumexp(f32[n,512],[1])",
    "aten::layer_norm(bf16[n,4096],[4096])",
    "aten::softmax.int(bf16[n,2048],-1)",
    "aten::add(bf16[n,4096],bf16[n,4096])",
    "aten::cumsum(f32[n,512],1)",
    "aten::mm(bf16[n,2048],bf16[2048,2048])",
    "aten::bmm(bf16[8,n,128],bf16[8,128,256])",
    "aten::convolution(f16[n,16,32,32],f16[32,16,3,3],None,[1,1],[0,0],[1,1],False,[0,0],1)",
)


def op_of(text: str, **sizes: int) -> ReplayOp:
    return plan_of_calls([Written(text=text, sizes=sizes)])[0].ops[0]


@pytest.mark.slow
@pytest.mark.parametrize("soc", ["910b2", "910b4", "910c", "950pr"])
@pytest.mark.parametrize("text", CALLS)
def test_caches_that_hold_more_take_no_longer(text: str, soc: str) -> None:
    states: tuple[L2State, ...] = ("warm", "loop", "cold", "sequence")
    for rows in ROWS:
        op = op_of(text, n=rows)
        warm, loop, cold, network = (simulate_op(op, load_device(soc), l2=l2).time_us for l2 in states)
        assert 0 < warm <= loop * 1.000001
        assert loop <= cold * 1.000001
        assert network * MOST_BELOW_WARM * 1.000001 >= warm


@pytest.mark.parametrize(
    "text",
    [
        "aten::add(f32[0,8],f32[0,8])",
        "aten::add_(f32[0],f32[0])",
        "aten::linear(bf16[0,64],bf16[32,64],bf16[32])",
        "aten::index_select(f32[5,4],0,i64[0])",
        "aten::sum.dim_IntList(f32[0,8],[1])",
        "npu::npu_swiglu(bf16[0,8])",
    ],
)
def test_results_without_elements_launch_nothing(text: str) -> None:
    simulated = simulate_op(op_of(text), load_device("910b3"))
    assert (simulated.time_us, simulated.kernels, simulated.bound) == (0.0, (), "no elements")
    assert any("no kernel is launched" in note for note in lower(op_of(text)).notes)


@pytest.mark.parametrize(
    "text",
    [
        "aten::sum(f32[0,8])",
        "aten::sum.dim_IntList(f32[0,8],[0])",
        "aten::mm(f32[4,0],f32[0,4])",
        "aten::nonzero(f32[4])",
        "aten::native_batch_norm(f32[0,8],f32[8],f32[8],f32[8],f32[8],True,0.1,1e-5)",
    ],
)
def test_what_fills_a_result_or_has_one_of_unknown_size_still_launches(text: str) -> None:
    assert simulate_op(op_of(text), load_device("910b3")).time_us > 0
