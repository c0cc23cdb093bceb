"""Arithmetic of transforms, and bytes of what a product is added to."""

from __future__ import annotations

from math import log2

import pytest

from opreplay.replay.ascend import KernelCall, load_device, lower, simulate_op
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.resolve.written.sweep import over_sizes, plan_of_calls

SOCS = ("910b2", "910b3", "910b4", "910c", "950pr")


def op_of(call: str) -> ReplayOp:
    return plan_of_calls(over_sizes([call], []))[0].ops[0]


def kernels(call: str) -> tuple[KernelCall, ...]:
    return lower(op_of(call)).kernels


@pytest.mark.parametrize(
    ("call", "passes", "operations"),
    [
        ("aten::_fft_c2c(c64[4,1024],[1],0,True)", 1, 5 * 4096 * 10),
        ("aten::_fft_r2c(f32[4,1024],[1],0,True)", 1, 2.5 * 4096 * 10),
        ("aten::_fft_c2r(c64[4,513],[1],0,1024)", 1, 2.5 * 4096 * 10),
        ("aten::_fft_c2c(c64[1024,4],[0],0,True)", 1, 5 * 4096 * 10),
        ("aten::fft_fft2(c64[3,8,16])", 2, 5 * 384 * 7),
        ("aten::fft_rfft(f32[4,1024])", 1, 2.5 * 4096 * 10),
        ("aten::_fft_c2c(c64[4,1],[1],0,True)", 1, 0),
        # 513 - 1 = 64 hops of 16 and one more: 65 windows of 64 samples in each of two signals.
        ("aten::stft(f32[2,1088],64,16,64,f32[64],False,True,True)", 1, 2 * 65 * 2.5 * 64 * 6),
        ("aten::stft(f32[2,1088],64,16,64,f32[64],False,False,True)", 1, 2 * 65 * 2.5 * 64 * 6),
        ("aten::stft(f32[2,4160],64,16,64,f32[64],False,True,False)", 1, 2 * 257 * 2.5 * 64 * 6),
        ("aten::istft(c64[2,33,65],64,16,64,f32[64],True)", 1, 2 * 65 * 2.5 * 64 * 6),
        ("aten::istft(c64[2,64,65],64,16,64,f32[64],True,False,False,None,True)", 1, 2 * 65 * 5 * 64 * 6),
        # Only the first numbers of a longer line are transformed.
        ("aten::fft_fft(c64[4,1024],64)", 1, 5 * 256 * 6),
        ("aten::fft_fft(c64[4,64],1024)", 1, 5 * 4096 * 10),
        ("aten::fft_rfft(f32[2,48000],512)", 1, 2.5 * 1024 * 9),
        ("aten::fft_rfft2(f32[8,64,64],[8,16])", 2, 2.5 * 1024 * 7),
        ("aten::fft_irfftn(c64[4,1024],[8,128])", 2, 2.5 * 1024 * 10),
    ],
)
def test_a_transform_computes_five_operations_a_number_and_halving(call: str, passes: int, operations: float) -> None:
    (kernel,) = kernels(call)
    assert (kernel.count, kernel.attrs["operations"]) == (passes, pytest.approx(operations / passes))


@pytest.mark.parametrize("soc", SOCS)
@pytest.mark.parametrize("state", ["cold", "loop", "warm", "sequence"])
def test_no_transform_is_quicker_than_its_arithmetic(soc: str, state: str) -> None:
    device = load_device(soc)
    lanes_per_s = device.aiv_cores * 64 * device.vector_width * device.freq_hz
    for batch, length in ((16, 1 << 18), (2048, 2048), (4, 64), (1, 1 << 22)):
        least_us = 5 * batch * length * log2(length) / lanes_per_s * 1e6
        op = op_of(f"aten::fft_fft(c64[{batch},{length}])")
        assert simulate_op(op, device, l2=state).time_us >= least_us  # type: ignore[arg-type]


EXPAND = {
    "vllm::bgmv_expand(f16[64,16],f16[4,128,16],f16[64,128],i64[64])": True,
    "vllm::bgmv_expand(f16[64,16],f16[4,128,16],f16[64,128],i64[64],True)": True,
    "vllm::bgmv_expand(f16[64,16],f16[4,128,16],f16[64,128],i64[64],False)": False,
    "vllm::sgmv_expand(f16[64,16],f16[4,128,16],f16[64,128],i64[4],i64[4],i64[4],4,4,64)": False,
    "vllm::sgmv_expand(f16[64,16],f16[4,128,16],f16[64,128],i64[4],i64[4],i64[4],4,4,64,True)": True,
    "vllm::bgmv_shrink(f16[64,128],f16[4,16,128],f16[64,16],i64[64],1.0)": False,
    "npu::bgmv_expand(f16[64,16],f16[4,128,16],i64[64],f16[64,128],0,128)": True,
    "_punica_C::dispatch_bgmv(f16[64,128],f16[64,16],f16[4,1,128,16],i64[64],0,1.0)": True,
}


@pytest.mark.parametrize("call", EXPAND)
def test_an_adapter_reads_what_its_product_is_added_to(call: str) -> None:
    (kernel,) = kernels(call)
    added = kernel.inputs[2:]
    assert added == (kernel.outputs if EXPAND[call] else ())
    assert bool(kernel.attrs.get("adds")) == EXPAND[call]


def test_adding_takes_the_time_to_read_the_target() -> None:
    device = load_device("910b3")
    call = "vllm::bgmv_expand(f16[32768,16],f16[4,8192,16],f16[32768,8192],i64[32768],{})"
    adding, writing = (simulate_op(op_of(call.format(flag)), device, l2="cold").time_us for flag in (True, False))
    target = 32768 * 8192 * 2 / device.hbm_bytes_per_s * 1e6
    assert adding >= 2 * target
    assert adding - writing >= 0.9 * target
