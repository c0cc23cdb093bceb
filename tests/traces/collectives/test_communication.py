"""Names of kernels and ops that communicate, and of those that only look like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from opreplay.traces.collectives.communication import is_communication, is_communication_op, kernel_path
from opreplay.traces.times.kernel_classes import class_of, class_of_work

HERE = Path(__file__).parent
COMMUNICATION = (HERE / "communication.txt").read_text().splitlines()
"""Names from the sources of the libraries."""
COMPUTATION = (HERE / "computation.txt").read_text().splitlines()
"""Kernels that stay on their device though their names hold the same words."""


@pytest.mark.parametrize("name", COMMUNICATION)
def test_communication(name: str) -> None:
    assert is_communication(name)
    assert class_of(name) == "communication"


@pytest.mark.parametrize("name", COMPUTATION)
def test_computation(name: str) -> None:
    assert not is_communication(name)
    assert class_of(name) != "communication"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("void deep_ep::intranode::dispatch<8, deep_ep::x<3> >(int4*, float)", "deep_ep::intranode::dispatch"),
        ("_ZN7deep_ep9intranode8dispatchILi8EEEvPi", "deep_ep::intranode::dispatch"),
        ("_ZN12_GLOBAL__N_114barrier_kernelEv", "barrier_kernel"),
        ("void (anonymous namespace)::barrier_kernel(int**)", "barrier_kernel"),
        ("gemm_kernel.kd", "gemm_kernel"),
        ("cut<off::in<a", "cut"),
        ("Notify Wait", "Notify Wait"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD"),
    ],
)
def test_path_of_a_kernel(name: str, path: str) -> None:
    assert kernel_path(name) == path


@pytest.mark.parametrize(
    ("name", "communicates"),
    [
        ("c10d::allreduce_", True),
        ("_c10d_functional::wait_tensor", True),
        ("record_param_comms", True),
        ("nccl:all_reduce", True),
        ("vllm::all_reduce", True),
        ("symm_mem::multimem_all_reduce_", True),
        ("_C_custom_ar::all_reduce", True),
        ("npu::npu_moe_distribute_dispatch", True),
        ("deep_ep::Buffer", True),
        ("nixl_ep::dispatch", True),
        ("nixl_ep::get_dispatch_layout", False),
        ("deep_ep::cast_fp8", False),
        ("my_lib::cross_rank_barrier", True),
        ("my_lib::grid_barrier", False),
        ("my_lib::ibgda_put", True),
        ("deep_gemm::fp8_fp4_mega_moe", True),
        ("npu::npu_mega_moe", True),
        ("mega_moe::forward", True),
        ("my_lib::mega_moe_topk_router", False),
        ("_C_ascend::dispatch_prefill", True),
        ("_C_ascend::get_dispatch_layout", False),
        ("my_lib::moe_dispatch", False),
        ("symm_mem::fused_all_gather_matmul", False),
        ("npu::npu_mm_all_reduce_base", False),
        ("aten::scatter_reduce", False),
        ("aten::all", False),
        ("vllm::moe_forward", False),
        ("aten::mm", False),
        ("Buffer.dispatch", False),
    ],
)
def test_ops(name: str, communicates: bool) -> None:
    assert is_communication_op(name) is communicates


@pytest.mark.parametrize(
    ("op", "kernel", "kind"),
    [
        ("_C_custom_ar::all_reduce", "my_kernel_7", "communication"),
        ("c10d::_allgather_base_", "Memcpy DtoD (Device -> Device)", "copies"),
        ("c10d::allreduce_", "void at::native::vectorized_elementwise_kernel<4, x>", "elementwise"),
        ("c10d::allreduce_", "void at::native::reduce_kernel<512, 1>", "reduction"),
        ("symm_mem::fused_all_gather_matmul", "sm90_xmma_gemm_bf16", "GEMM"),
        ("symm_mem::fused_all_gather_matmul", "multimem_all_gather_kernel<16>", "communication"),
        ("aten::mm", "ncclDevKernel_AllGather_RING_LL", "communication"),
    ],
)
def test_a_kernel_of_an_op(op: str, kernel: str, kind: str) -> None:
    assert class_of_work(op, kernel) == kind
