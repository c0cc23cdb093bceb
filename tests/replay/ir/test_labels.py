"""Names that are no ops."""

from __future__ import annotations

import pytest

from opreplay.replay.ir.labels import not_an_op, work_of_label
from opreplay.traces.model import OpSignature


@pytest.mark.parametrize(
    ("name", "dims", "kind"),
    [
        ("detach", ((),), "label, not an op"),
        ("aten::record_stream", ((4,), ()), "label, not an op"),
        ("aten::_make_dual", ((4,), (4,), ()), "label, not an op"),
        ("MmBackward0", None, "label, not an op"),
        ("autograd::engine::evaluate_function: MmBackward0", None, "label, not an op"),
        ("torch::autograd::AccumulateGrad", ((4,),), "label, not an op"),
        ("torch::autograd::CppNode<SplitLookupFunction_Dense_Op>", ((4,),), "label, not an op"),
        ("record_param_comms", None, "label, not an op"),
        ("record_param_comms", ((4,),), "collective"),
        ("TorchDynamo Cache Lookup", None, "label, not an op"),
        ("Pregraph bytecode", None, "label, not an op"),
        ("ProfilerStep#3", None, "label, not an op"),
        ("Optimizer.step#SGD.step", None, "label, not an op"),
        ("triton_poi_fused_add_0", ((4,),), "triton kernel"),
        ("graph_0_cpp_fused_add_0", None, "triton kernel"),
        ("c10d::allreduce_", (((4,),),), "collective"),
        ("_c10d_functional::wait_tensor", ((4,),), "collective"),
        ("nccl:all_reduce", None, "collective"),
        ("HcclAllreduce", None, "collective"),
        ("vllm::all_reduce", ((4,),), "collective"),
        ("nixl_ep::dispatch", ((4,),), "collective"),
        ("deep_gemm::fp8_fp4_mega_moe", ((4,),), "collective"),
        ("deep_ep::get_dispatch_layout", ((4,),), None),
        ("aten::mm", ((4, 4), (4, 4)), None),
        ("vllm::moe_forward", ((4, 4),), None),
        ("aten::_foreach_add_", None, None),
    ],
)
def test_kinds(name: str, dims: tuple[tuple[int, ...], ...] | None, kind: str | None) -> None:
    reason = not_an_op(OpSignature(name=name, dims=dims))
    assert (reason.kind if reason else None) == kind


def test_a_communication_that_owns_device_time_is_one_without_arguments_too() -> None:
    bare = OpSignature(name="record_param_comms")
    assert str(not_an_op(bare, on_device=True)) == "collective"
    assert str(not_an_op(OpSignature(name="ProfilerStep#3"), on_device=True)) == "label, not an op"


@pytest.mark.parametrize(
    ("kernels", "kind"),
    [
        (("triton_poi_fused_add_0", "triton_red_fused_mean_1"), "triton kernel"),
        (("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",), "collective"),
        (("triton_poi_fused_add_0", "ampere_sgemm_128x64_tn"), None),
        ((), None),
    ],
)
def test_a_label_stands_for_what_all_of_its_kernels_are(kernels: tuple[str, ...], kind: str | None) -> None:
    """inductor launches its kernels inside of CompiledFunction, which has no op around them."""
    reason = work_of_label(kernels)
    assert (reason.kind if reason else None) == kind
