"""What to change first: candidates on steps of a machine whose rules are known."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from opreplay.replay.ir.advice import Advice, AdviceList
from opreplay.replay.ir.notation import parse_call, recorded_call_text
from opreplay.replay.report.step.advice import head_line
from opreplay.replay.timeline.advice import advise
from opreplay.replay.timeline.timeline import timeline, with_other_steps
from opreplay.traces import read_trace
from opreplay.traces.model import OpSignature, TensorMeta
from opreplay.traces.times.peaks import is_exact_float32, peak_named, roof_us
from tests.replay.timeline.machine import Machine, training

H100 = "NVIDIA H100 80GB HBM3"


def advice_on(machine: Machine, folder: Path, device: str = H100) -> AdviceList:
    path = folder / "t.json"
    events = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": device}], "traceEvents": machine.events}
    path.write_text(json.dumps(events))
    trace = read_trace(path, activity=True)
    return advise(with_other_steps(trace, timeline(trace)))


def only(found: AdviceList, kind: str) -> Advice:
    (item,) = (item for item in found.items if item.kind == kind)
    return item


def one_step(*parts: object) -> Machine:
    machine = Machine()
    machine.begin()
    for part in parts:
        part(machine)  # type: ignore[operator]
    machine.synchronize()
    machine.end()
    return machine


def products(count: int = 10, us: float = 100.0, host_us: float = 8.0):
    def run(machine: Machine) -> None:
        for _ in range(count):
            machine.op("acme::product", host_us, ("acme_product", us))

    return run


def shaped(machine: Machine, kernel: str, us: float, dtype: str, dims: list[list[int]]) -> None:
    machine.op("aten::mm", 8.0, (kernel, us))
    machine.events[-1]["args"] |= {"Input Dims": dims, "Input type": [dtype] * len(dims)}


def test_advice_is_ranked_and_holds_its_gain_in_its_range(tmp_path: Path) -> None:
    found = advice_on(training(), tmp_path)
    assert found.items
    for item, after in pairwise(found.items):
        assert item.gain_us > after.gain_us - 0.01 * found.step_us
    for item in found.items:
        assert item.low_us <= item.gain_us <= item.high_us
        assert item.share == pytest.approx(item.gain_us / found.step_us)
        assert item.share >= 0.01


def test_a_function_that_launches_nothing_is_named_with_its_whole_time(tmp_path: Path) -> None:
    def load(machine: Machine) -> None:
        begin = machine.now
        machine.host(2000.0)
        machine._add("python_function", "torch/utils/data/dataloader.py(7): __next__", begin, 2000.0)
        machine._add("python_function", "project/images.py(3): resize", begin + 20.0, 1950.0)

    item = only(advice_on(one_step(load, products()), tmp_path), "python")
    assert item.function == "images.py(3): resize"
    assert item.gain_us == pytest.approx(2000.0, rel=0.02)


def test_a_step_of_the_host_alone_says_that_few_changes_are_tried(tmp_path: Path) -> None:
    """It said that "none of the usual changes applies", although none but the first kind was tried."""
    machine = Machine()
    machine.begin()
    for _ in range(10):
        machine.op("aten::mm", 1000.0)
    machine.end()
    found = advice_on(machine, tmp_path)
    assert (found.on_host, found.items) == (True, ())
    assert "other changes are not tried if all work ran on the host" in head_line(found)
    assert not advice_on(training(), tmp_path).on_host


def test_a_loader_that_runs_ops_is_work_of_a_step_of_the_host_alone(tmp_path: Path) -> None:
    machine = Machine()
    machine.begin()
    begin = machine.now
    for _ in range(3):
        machine.host(600.0)
        machine.op("aten::stack", 100.0)
    machine._add("user_annotation", "enumerate(DataLoader)#_Iter.__next__", begin, machine.now - begin)
    machine.op("aten::mm", 1000.0)
    machine.end()
    (first,) = advice_on(machine, tmp_path).items
    assert (first.kind, first.gain_us) == ("python", pytest.approx(2100.0))
    assert "data loader" in first.what


def test_a_caller_that_waits_for_launches_of_another_thread_is_no_advice(tmp_path: Path) -> None:
    def backward(machine: Machine) -> None:
        begin = machine.now
        machine.tid = 2
        products(20, us=10.0, host_us=100.0)(machine)
        machine.tid = 1
        machine._add("python_function", "torch/autograd/graph.py(8): _engine_run_backward", begin, machine.now - begin)

    found = advice_on(one_step(products(2), backward, products(2)), tmp_path)
    assert [item.kind for item in found.items if item.kind == "python"] == []


def test_a_captured_graph_leaves_long_host_work_and_waits(tmp_path: Path) -> None:
    def log(machine: Machine) -> None:
        machine.host(3000.0)

    launches = products(50, us=3.0, host_us=30.0)
    found = advice_on(one_step(launches, log, launches), tmp_path)
    # The first graph runs while the host logs.
    assert only(found, "cudagraph").gain_us == pytest.approx(100 * 34.0 - 50 * 4.0, rel=0.05)
    assert only(found, "python").gain_us == pytest.approx(3000.0, rel=0.1)


def test_communication_can_be_hidden_but_takes_its_own_time(tmp_path: Path) -> None:
    def reduce(machine: Machine) -> None:
        machine.wait_for(20, 7)
        machine.op("c10d::allreduce_", 10.0, ("ncclDevKernel_AllReduce", 600.0), stream=20)
        machine.wait_for(7, 20)

    assert only(advice_on(one_step(products(), reduce), tmp_path), "overlap").gain_us == pytest.approx(600.0, rel=0.05)
    found = advice_on(one_step(products(2), reduce, reduce, reduce), tmp_path)
    assert found.step_us - only(found, "overlap").gain_us == pytest.approx(1800.0, rel=0.05)


def test_runs_of_elementwise_kernels_end_where_the_host_waits(tmp_path: Path) -> None:
    def adds(machine: Machine) -> None:
        for _ in range(5):
            machine.op("aten::add", 4.0, ("vectorized_elementwise_kernel", 50.0))

    whole = only(advice_on(one_step(products(4), adds, adds), tmp_path), "fusion")
    assert whole.gain_us == pytest.approx(9 * 50.0, rel=0.06)
    parts = only(advice_on(one_step(products(4), adds, Machine.synchronize, adds), tmp_path), "fusion")
    assert parts.gain_us == pytest.approx(8 * 50.0, rel=0.06)


def test_an_op_far_from_its_roof_is_brought_to_a_share_of_it(tmp_path: Path) -> None:
    dims = [[4096, 4096], [4096, 4096]]
    roof = roof_us(peak_named("H100"), 2.0 * 4096**3, None, "bfloat16")
    assert roof is not None
    found = advice_on(
        one_step(products(), lambda machine: shaped(machine, "gemm", 2000.0, "c10::BFloat16", dims)), tmp_path
    )
    item = only(found, "op")
    assert item.gain_us == pytest.approx(2000.0 - roof[0] / 0.8, rel=0.01)
    assert item.command == "opreplay op 'aten::mm(bf16[4096,4096], bf16[4096,4096])'"
    assert (
        advice_on(one_step(products(), lambda m: shaped(m, "gemm", 2000.0, "c10::BFloat16", dims)), tmp_path, "X").items
        == ()
    )


def test_a_product_of_unknown_speed_is_not_brought_to_the_bandwidth(tmp_path: Path) -> None:
    n = 4096
    machine = one_step(lambda machine: shaped(machine, "dgemm", 3000.0, "double", [[n, n], [n, n]]))
    assert not [item for item in advice_on(machine, tmp_path).items if item.kind == "op"]


def test_times_that_are_none_give_no_advice(tmp_path: Path) -> None:
    machine = one_step(
        products(1),
        lambda machine: shaped(machine, "gemm", 0.0, "c10::BFloat16", [[64, 64], [64, 64]]),
    )
    found = advice_on(machine, tmp_path)
    assert (found.items, found.doubts.zero_durations) == ((), 1)


def test_host_work_saves_no_more_than_the_idle_time_of_the_device(tmp_path: Path) -> None:
    """Streams without a known dependency would overlap across steps: 40 % of a step that idles 10 % was "saved"."""

    def two_streams(machine: Machine) -> None:
        machine.op("aten::mm", 8.0, ("gemm", 300.0))
        machine.launch("other", 600.0, stream=20, after=machine.free[7])
        machine.host(900.0)

    machine = Machine()
    machine.begin()
    two_streams(machine)
    machine.end()
    found = advice_on(machine, tmp_path)
    idle_us = found.step_us - 900.0
    assert [item.kind for item in found.items if item.gain_us > idle_us + 2.0] == []


def test_sizes_of_no_machine_are_unknown_to_advice(tmp_path: Path) -> None:
    machine = one_step(lambda machine: shaped(machine, "gemm", 100.0, "float", [[2**62, 2**62], [2**62, 4]]))
    assert advice_on(machine, tmp_path).items == ()


def test_float32_products_may_use_tf32_where_they_do_not(tmp_path: Path) -> None:
    dims = [[4096, 4096], [4096, 4096]]
    found = advice_on(one_step(lambda m: shaped(m, "ampere_sgemm_128x64_nn", 2500.0, "float", dims)), tmp_path)
    types = {item.what: item for item in found.items if item.kind == "dtype"}
    assert len(types) == 2
    exact = next(item for what, item in types.items() if "TF32" in what)
    assert exact.gain_us == pytest.approx(2500.0 * (1 - 67 / 495), rel=0.02)
    found = advice_on(one_step(lambda m: shaped(m, "sm80_xmma_gemm_tf32f32", 2500.0, "float", dims)), tmp_path)
    assert ["TF32" in item.what for item in found.items if item.kind == "dtype"] == [False]


def test_slow_calls_among_equal_ones_are_told_without_a_roof(tmp_path: Path) -> None:
    item = only(advice_on(one_step(products(20), products(1, us=3000.0), products(5)), tmp_path), "op")
    assert item.gain_us == pytest.approx(2900.0, rel=0.02)


def test_reading_a_value_is_left_out_with_its_wait(tmp_path: Path) -> None:
    def item(machine: Machine) -> None:
        begin, number = machine.now, machine._next()
        start = max(machine.now + 6.0, machine.free[7] + 1.0)
        machine._device("Memcpy DtoH (Device -> Pageable)", start, 2.0, 7, number, number)
        machine.events[-1]["cat"] = "gpu_memcpy"
        machine.now = start + 4.0
        machine._add("cuda_runtime", "cudaMemcpyAsync", begin, machine.now - begin, correlation=number)
        machine._add("cpu_op", "aten::_local_scalar_dense", begin, machine.now - begin, **{"External id": number})

    slow_host = products(10, us=20.0, host_us=100.0)
    found = advice_on(one_step(products(10), item, slow_host), tmp_path)
    copies = only(found, "copies")
    assert copies.gain_us > 500.0


def test_a_recorded_call_is_written_as_it_is_read() -> None:
    signature = OpSignature(
        name="aten::addmm",
        dims=((64,), (8, 32), (32, 64), (), ()),
        types=("float", "float", "float", "Scalar", "Scalar"),
        strides=((1,), (32, 1), (1, 32), (), ()),
        concrete=("", "", "", "1", "0.5"),
    )
    call = parse_call(recorded_call_text(signature))
    assert call.name == "aten::addmm"
    assert call.args[2] == TensorMeta(shape=(32, 64), dtype="float32", strides=(1, 32))
    assert call.args[3:] == (1, 0.5)
    lacking = OpSignature(name="aten::cat", dims=(((2,), (2,)), ()), types=("TensorList", "Scalar"), concrete=("", "0"))
    assert recorded_call_text(lacking) == ""


def test_names_of_kernels_tell_exact_float32() -> None:
    assert is_exact_float32("cutlass_80_simt_sgemm_128x32")
    assert not is_exact_float32("sm80_xmma_gemm_f32f32_tf32f32_f32")
    assert not is_exact_float32("nvjet_tst_128x256")
