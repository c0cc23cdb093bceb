"""Shapes from an ExecutionTrace of the same run: evidence, what is kept, and a run recorded both ways as the truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from opreplay.replay.ir.recorded_call import recorded_args
from opreplay.traces import read_trace
from opreplay.traces.errors import UsageError
from opreplay.traces.joins.execution_trace import _complete, join_shapes
from opreplay.traces.model import OpSignature, ShapeJoin, Trace


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Trace]:
    """(Kineto with all metadata, ExecutionTrace) of three training steps."""
    import torch
    from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

    folder = tmp_path_factory.mktemp("recorded")
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32), torch.nn.GELU("tanh")
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(4, 16)
    observer = ExecutionTraceObserver().register_callback(str(folder / "et.json"))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, execution_trace_observer=observer) as profiler:
        for step in range(3):
            optimizer.zero_grad()
            out = model(inputs)
            (out[torch.tensor([0, step])].sum() + torch.cat([inputs, inputs[1:]]).sum()).backward()
            optimizer.step()
    profiler.export_chrome_trace(str(folder / "kineto.json"))
    observer.unregister_callback()
    return read_trace(folder / "kineto.json", record_function_ids=True), read_trace(folder / "et.json")


def stripped(trace: Trace, *, ids: bool) -> Trace:
    """The trace as if it had been recorded without shapes."""
    bare = tuple(OpSignature(name=signature.name) for signature in trace.signatures)
    ops = trace.ops if ids else msgspec.structs.replace(trace.ops, record_function_id=None)
    return msgspec.structs.replace(
        trace, signatures=bare, ops=ops, info=msgspec.structs.replace(trace.info, metadata_level="none")
    )


def joined(trace: Trace) -> ShapeJoin:
    assert trace.info.joined is not None
    return trace.info.joined


@pytest.mark.parametrize("ids", [True, False])
def test_a_trace_without_shapes_gets_those_that_were_recorded(recorded: tuple[Trace, Trace], ids: bool) -> None:
    kineto, donor = recorded
    result = join_shapes(stripped(kineto, ids=ids), donor)
    counts = joined(result)
    with_shapes = sum(kineto.signatures[index].dims is not None for index in kineto.ops.signature.tolist())
    assert (counts.by_record_function_id if ids else counts.by_sequence) == with_shapes
    assert (counts.unmatched, counts.disagreeing, counts.same_process) == (0, 0, True)
    assert result.info.metadata_level == "full"
    for before, after in zip(kineto.ops.signature.tolist(), result.ops.signature.tolist(), strict=True):
        truth, given = kineto.signatures[before], result.signatures[after]
        assert given.name == truth.name
        if truth.dims is None or "index" in given.name:  # Kineto leaves Tensor?[] blank
            continue
        assert (given.dims, given.types, given.strides) == (truth.dims, truth.types, truth.strides)


def test_one_iteration_serves_all(recorded: tuple[Trace, Trace]) -> None:
    kineto, donor = recorded
    third = len(donor.ops) // 3
    assert donor.ops.parent is not None
    part = msgspec.structs.replace(
        donor.ops,
        signature=donor.ops.signature[:third],
        start_ns=donor.ops.start_ns[:third],
        dur_ns=donor.ops.dur_ns[:third],
        track=donor.ops.track[:third],
        parent=np.where(donor.ops.parent[:third] < third, donor.ops.parent[:third], -1),
        record_function_id=None,
    )
    counts = joined(join_shapes(stripped(kineto, ids=False), msgspec.structs.replace(donor, ops=part)))
    given = counts.by_sequence + counts.by_context
    assert given > 0.95 * (len(kineto.ops) - counts.no_arguments)


def test_recorded_metadata_is_kept_and_completed(recorded: tuple[Trace, Trace]) -> None:
    kineto, donor = recorded
    result = join_shapes(kineto, donor)
    assert joined(result).already_recorded == len(kineto.ops) - joined(result).no_arguments
    gelu = next(signature for signature in result.signatures if signature.name == "aten::gelu")
    assert gelu.concrete == ("", "tanh")
    transpose = next(signature for signature in result.signatures if signature.name == "aten::transpose")
    assert transpose.overload == "int"
    index = next(signature for signature in result.signatures if signature.name == "aten::index")
    assert index.list_types == ((), ("long int",))


def test_a_list_too_long_for_a_profile_is_completed() -> None:
    """It was refused as disagreeing: a profile gives it a type and no sizes."""
    sizes = tuple((n,) for n in range(40))
    ours = OpSignature(name="aten::cat", dims=((), ()), types=("TensorList", "Scalar"), strides=((), ()))
    theirs = OpSignature(
        name="aten::cat",
        dims=(sizes, ()),
        types=("TensorList", "Scalar"),
        concrete=("", "0"),
        overload="",
        list_types=(("float",) * 40, ()),
    )
    completed = _complete(ours, theirs)
    assert completed is not None
    assert completed.dims == (sizes, ())
    assert completed.list_types == theirs.list_types
    (tensors, _) = recorded_args(completed)
    assert tensors.tensors is not None
    assert [meta and (meta.shape, meta.dtype) for meta in tensors.tensors] == [(size, "float32") for size in sizes]
    assert not tensors.unlike_strided
    single = replace(theirs, dims=((5,), ()), types=("float", "Scalar"))
    assert _complete(ours, single) is None


def test_contradicting_shapes_are_not_taken(recorded: tuple[Trace, Trace]) -> None:
    kineto, donor = recorded
    wrong = tuple(
        replace(signature, dims=((9, 9), *signature.dims[1:]))
        if signature.name == "aten::addmm" and signature.dims
        else signature
        for signature in donor.signatures
    )
    result = join_shapes(kineto, msgspec.structs.replace(donor, signatures=wrong))
    assert joined(result).disagreeing == 6
    assert all(signature.dims[0] != (9, 9) for signature in result.signatures if signature.dims)


def test_ids_of_another_run_are_no_evidence(recorded: tuple[Trace, Trace]) -> None:
    kineto, donor = recorded
    assert donor.ops.record_function_id is not None
    moved = msgspec.structs.replace(
        donor, ops=msgspec.structs.replace(donor.ops, record_function_id=donor.ops.record_function_id[::-1].copy())
    )
    counts = joined(join_shapes(stripped(kineto, ids=True), moved))
    assert counts.by_record_function_id == 0
    assert counts.unmatched == 0


def test_only_an_execution_trace_with_arguments_can_donate(recorded: tuple[Trace, Trace]) -> None:
    kineto, donor = recorded
    with pytest.raises(UsageError, match="is not an ExecutionTrace"):
        join_shapes(kineto, kineto)
    with pytest.raises(UsageError, match="records no arguments"):
        join_shapes(
            kineto, msgspec.structs.replace(donor, info=msgspec.structs.replace(donor.info, metadata_level="none"))
        )


def test_public_linear_run(shared_traces: Path) -> None:
    kineto = read_trace(shared_traces / "param_linear_kineto.json.gz")
    counts = joined(join_shapes(kineto, read_trace(shared_traces / "param_linear_et.json.gz")))
    assert counts.same_process
    assert counts.by_sequence >= 32_000
    assert counts.unmatched <= 100  # aten::detach, which the one recorded iteration does not have


@pytest.mark.slow
def test_public_resnet_pair_is_not_of_one_run(shared_traces: Path) -> None:
    """ResNet-18 in one process, ResNet-50 in another: that is said, and little is taken."""
    kineto = read_trace(shared_traces / "param_resnet_kineto.json.gz")
    counts = joined(join_shapes(kineto, read_trace(shared_traces / "param_resnet_et.json.gz")))
    assert not counts.same_process
    assert counts.unmatched > len(kineto.ops) // 2
