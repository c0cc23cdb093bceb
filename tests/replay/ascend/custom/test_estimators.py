"""Users' own operators: the RFC's templates, priorities, the custom-op folder, and the defects of the original."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from opreplay.replay.ascend import list_devices, load_device, simulate_op
from opreplay.replay.ascend.custom.estimators import (
    CustomOpError,
    clear_registrations,
    load_custom_ops,
    register_op_estimator,
    terms_of,
)
from opreplay.replay.ascend.custom.op_invoke import ComputeOps, OpInvokeInfo, PerformanceModel, PerformanceProperties
from opreplay.replay.ir.model import Reason, Recorded, ReplayArg, ReplayOp
from opreplay.replay.report.sweep import prediction_notes
from opreplay.traces.errors import UsageError
from opreplay.traces.model import TensorMeta
from tests.factories import meta as any_meta
from tests.replay.ops.names import costed_ops

DEVICE = load_device("910b3")
LIBRARY = torch.library.Library("your_op", "DEF")
LIBRARY.define("Operator(Tensor x, Tensor w, int steps, *, float scale=1.0) -> Tensor")


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    clear_registrations()
    yield
    clear_registrations()


meta = partial(any_meta, dtype="bfloat16")


def arg(name: str, value: object, *, mutated: bool = False, keyword_only: bool = False) -> ReplayArg:
    if isinstance(value, TensorMeta):
        return ReplayArg(name=name, type="Tensor", tensors=(value,), mutated=mutated, keyword_only=keyword_only)
    return ReplayArg(name=name, type="int", value=value, keyword_only=keyword_only)  # type: ignore[arg-type]


def make(name: str, *args: ReplayArg, outputs: tuple[TensorMeta, ...] | None = None) -> ReplayOp:
    return ReplayOp(
        id="0" * 12,
        name=name,
        count=1,
        recorded=Recorded(host_us_total=1.0, host_us_median=1.0),
        resolved_by="jit",
        args=args,
        outputs=outputs,
    )


def your_op(steps: int = 2) -> ReplayOp:
    return make(
        "your_op::Operator",
        arg("x", meta(128, 256)),
        arg("w", meta(256, 512)),
        arg("steps", steps),
        arg("scale", 2, keyword_only=True),
        outputs=(meta(128, 512),),
    )


def test_the_estimator_template_of_the_rfc() -> None:
    @register_op_estimator(torch.ops.your_op.Operator, None, False)
    def _estimate_operator(op_invoke_info: OpInvokeInfo, device_profile) -> PerformanceModel.Result:
        x = op_invoke_info.args[0]
        w = op_invoke_info.args[1]
        assert x.is_meta
        m, k = x.shape
        n = w.shape[1]
        t = 2 * m * n * k * op_invoke_info.args[2] / device_profile.mma_ops[x.dtype]
        t += op_invoke_info.out.numel() * op_invoke_info.kwargs["scale"] / device_profile.memory_bandwidth_bytes_ps
        return PerformanceModel.Result(t)

    for name in list_devices():
        device = load_device(name)
        seconds = 4 * 128 * 256 * 512 / (2 * 4096 * device.aic_cores * device.freq_hz)
        seconds += 128 * 512 * 2 / device.hbm_bytes_per_s
        found = simulate_op(your_op(), device)
        assert found.time_us == pytest.approx(seconds * 1e6)
        assert (found.bound, found.confidence) == ("custom", "uncalibrated")
        assert simulate_op(your_op(), device, l2="cold").l2 == "cold"


def test_the_properties_template_of_the_rfc() -> None:
    plain = simulate_op(your_op(), DEVICE)

    @OpInvokeInfo.register_op_properties(torch.ops.your_op.Operator)
    def _operator_properties(op_invoke_info: OpInvokeInfo) -> OpInvokeInfo.PerformanceProperties:
        properties = op_invoke_info.get_memory_access_properties()
        x, w = op_invoke_info.args[0], op_invoke_info.args[1]
        compute_ops = properties.compute_ops.setdefault(x.dtype, OpInvokeInfo.ComputeOps())
        compute_ops.mma_ops = 2 * x.shape[0] * x.shape[1] * w.shape[1] * 5000
        compute_ops.gp_ops = x.numel()
        return properties

    found = simulate_op(your_op(), DEVICE)
    assert found.bound == "cube"
    peak = 2 * 4096 * DEVICE.aic_cores * DEVICE.freq_hz
    assert found.time_us > 2 * 128 * 256 * 512 * 5000 / peak * 1e6
    assert found.time_us != plain.time_us


@pytest.mark.parametrize("use", ["estimator", "properties"])
def test_a_result_that_nobody_knows_is_assumed_and_the_prediction_says_so(use: str) -> None:
    x, known = meta(64, 32), your_op()
    unknown = make("your_op::Operator", arg("x", x), arg("w", meta(8)))
    in_place = make("your_op::Operator", arg("out", meta(16, 4), mutated=True), arg("x", x))

    def moved(info: OpInvokeInfo) -> PerformanceProperties:
        properties = info.get_memory_access_properties()
        properties.memory_write_bytes += info.out.numel() * info.out.element_size() * 1e6
        return properties

    if use == "properties":
        OpInvokeInfo.register_op_properties("your_op::Operator")(moved)
    else:
        register_op_estimator("your_op::Operator")(lambda info, device: info.out.numel() * 1e-6)
    found = [simulate_op(op, DEVICE) for op in (known, unknown, in_place)]
    if use == "estimator":
        assert [one.time_us for one in found] == pytest.approx([128 * 512, 64 * 32, 16 * 4])
    assert [bool(one.taken_for) for one in found] == [False, True, False]
    assert [len(prediction_notes(one)) - len(prediction_notes(found[0])) for one in found] == [0, 1, 0]


def test_priorities() -> None:
    mm = make("aten::mm", arg("self", meta(64, 64)), arg("mat2", meta(64, 64)), outputs=(meta(64, 64),))
    built_in = simulate_op(mm, DEVICE)
    unknown = simulate_op(your_op(), DEVICE)
    seen = []

    @OpInvokeInfo.register_op_properties("aten::mm")
    @OpInvokeInfo.register_op_properties("your_op::Operator")
    def properties(info: OpInvokeInfo) -> PerformanceProperties:
        seen.append(info.name)
        return PerformanceProperties(memory_read_bytes=1e9)

    assert simulate_op(mm, DEVICE).by == "user properties", "a user's properties go before the built-in estimate"
    assert simulate_op(mm, DEVICE) != built_in
    assert simulate_op(your_op(), DEVICE).time_us > 10 * unknown.time_us, "which go before bytes"
    register_op_estimator("aten::mm")(lambda info, device: PerformanceModel.Result(1e-3))
    register_op_estimator("your_op::Operator")(lambda info, device: PerformanceModel.Result(2e-3))
    assert simulate_op(mm, DEVICE).time_us == 1000.0, "a user's estimator goes first"
    assert simulate_op(your_op(), DEVICE).time_us == 2000.0
    assert seen == ["aten::mm", "aten::mm", "your_op::Operator"]


def test_one_estimator_for_several_devices() -> None:
    @register_op_estimator("your_op::Operator", ("910b3", "910c"))
    def estimate(info: OpInvokeInfo, device: object) -> PerformanceModel.Result:
        return PerformanceModel.Result(1.25e-3)

    call = make("your_op::Operator", arg("x", meta(8, 8)))
    times = {name: simulate_op(call, load_device(name)).time_us for name in ("910b3", "910c", "910b4")}
    assert times["910b3"] == times["910c"] == pytest.approx(1250)
    assert times["910b4"] < 100


@pytest.mark.slow
def test_one_estimator_for_a_device_leaves_every_other_op_and_device_alone() -> None:
    """The original raised KeyError: None for every other op of that device."""
    before = {n: simulate_op(make(n, arg("self", meta(64, 64))), DEVICE) for n in costed_ops()}
    register_op_estimator(torch.ops.your_op.Operator, DEVICE)(lambda info, device: PerformanceModel.Result(1.0))
    register_op_estimator("aten::other", "Ascend910B3")(lambda info, device: PerformanceModel.Result(1.0))
    after = {n: simulate_op(make(n, arg("self", meta(64, 64))), DEVICE) for n in costed_ops()}
    assert before == after
    assert simulate_op(your_op(), DEVICE).time_us == 1e6
    assert simulate_op(your_op(), load_device("910b4")).time_us < 1e3
    assert simulate_op(make("nobody::knows"), DEVICE).bound == "none"
    assert simulate_op(make("no_namespace", arg("x", meta(4))), DEVICE).time_us > 0


def test_a_user_overrides_a_built_in_without_a_flag_and_themselves_with_one() -> None:
    """The original raised for the automatic override."""
    register_op_estimator("aten::add")(lambda info, device: PerformanceModel.Result(1e-6))

    def second(info: OpInvokeInfo, device: object) -> PerformanceModel.Result:
        return PerformanceModel.Result(2e-6)

    with pytest.raises(ValueError, match=r"test_estimators.py:\d+.*override=True"):
        register_op_estimator("aten::add")(second)
    register_op_estimator("aten::add", override=True)(second)
    assert simulate_op(make("aten::add", arg("self", meta(8)), arg("other", meta(8))), DEVICE).time_us == 2.0


def test_scalars_and_sequence_lengths_are_part_of_what_is_estimated() -> None:
    """The original's cache returned the time of a decode step at 128 for one at 8192."""
    register_op_estimator("your_op::Operator")(lambda info, device: PerformanceModel.Result(info.args[2] * 1e-6))
    assert [simulate_op(your_op(n), DEVICE).time_us for n in (128, 8192, 128)] == pytest.approx([128, 8192, 128])


def test_in_place_ops_are_charged_once() -> None:
    """The original counted what is updated as argument, as result and as in-place traffic."""
    x, y = meta(1024, 1024), meta(1024, 1024)
    size = 2 * 1024 * 1024
    new = OpInvokeInfo(make("your_op::add", arg("self", x), arg("other", y), outputs=(x,)))
    same = OpInvokeInfo(make("your_op::add_", arg("self", x, mutated=True), arg("other", y), outputs=(x,)))
    out, inplace = new.get_memory_access_properties(), same.get_memory_access_properties()
    assert (out.memory_read_bytes, out.memory_write_bytes, out.memory_readwrite_bytes) == (2 * size, size, 0)
    assert (inplace.memory_read_bytes, inplace.memory_write_bytes, inplace.memory_readwrite_bytes) == (size, 0, size)
    assert terms_of(out, DEVICE) == terms_of(inplace, DEVICE)
    assert simulate_op(new.op, DEVICE).time_us == pytest.approx(simulate_op(same.op, DEVICE).time_us)


def test_index_is_charged_what_it_looks_up() -> None:
    """The original charged the whole source tensor."""
    table, picked = meta(1_000_000, 128), meta(16, 128)
    index = ReplayArg(name="indices", type="Tensor[]", tensors=(meta(16, dtype="int64"),))
    op = make("aten::index", arg("self", table), index, outputs=(picked,))
    assert OpInvokeInfo(op).get_memory_access_properties().memory_read_bytes == 16 * 128 * 2 + 16 * 8
    assert simulate_op(op, DEVICE).time_us < 30


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "nobody_knows", torch.float64, torch.int64])
def test_unknown_dtypes_are_not_free(dtype: object) -> None:
    """The original computed them for nothing."""
    known, odd = (
        terms_of(PerformanceProperties(compute_ops={d: ComputeOps(mma_ops=1e12, gp_ops=1e9)}), DEVICE)
        for d in (torch.bfloat16, dtype)
    )
    assert sum(odd.values()) >= sum(known.values())


def test_a_failing_function_names_its_file_and_line() -> None:
    @register_op_estimator("your_op::Operator")
    def broken(info: OpInvokeInfo, device: object) -> PerformanceModel.Result:
        return PerformanceModel.Result(info.args[7])

    with pytest.raises(CustomOpError, match=r"test_estimators.py:\d+: broken failed for your_op::Operator: IndexError"):
        simulate_op(your_op(), DEVICE)
    for wrong in (None, "1", float("nan"), -1.0, True):
        register_op_estimator("your_op::Operator", override=True)(lambda info, device, wrong=wrong: wrong)
        with pytest.raises(CustomOpError, match="not a time in seconds"):
            simulate_op(your_op(), DEVICE)


def test_an_op_without_recorded_arguments_is_not_estimated() -> None:
    register_op_estimator("your_op::Operator")(lambda info, device: PerformanceModel.Result(info.args[0].numel()))
    bare = ReplayOp(
        id="1" * 12,
        name="your_op::Operator",
        count=1,
        recorded=Recorded(host_us_total=1, host_us_median=1),
        reason=Reason("metadata missing", "shapes"),
    )
    assert simulate_op(bare, DEVICE).time_us == 0


GOOD = """
from opreplay.replay.ascend.custom import PerformanceModel, register_op_estimator

@register_op_estimator("your_op::{name}")
def estimate(op_invoke_info, device_profile):
    return PerformanceModel.Result({us}e-6)
"""


def test_the_folder_is_loaded_in_order_and_one_failing_file_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(GOOD.format(name="First", us=1))
    (tmp_path / "b.py").write_text("import math\n\nmath.no_such_thing\n")
    (tmp_path / "c.py").write_text("def broken(:\n")
    (tmp_path / "d.py").write_text(GOOD.format(name="Last", us=4))
    (tmp_path / "readme.txt").write_text("not code")
    with pytest.raises(CustomOpError, match=r"2 files of .* failed") as caught:
        load_custom_ops(tmp_path)
    text = str(caught.value)
    assert f"{tmp_path}/b.py:3: AttributeError" in text
    assert f"{tmp_path}/c.py:1: SyntaxError" in text
    for name, us in (("First", 1), ("Last", 4)):
        assert simulate_op(make(f"your_op::{name}", arg("x", meta(4))), DEVICE).time_us == pytest.approx(us)
    (tmp_path / "b.py").unlink()
    (tmp_path / "c.py").unlink()
    assert load_custom_ops(tmp_path) == [], "loaded files are not run again"
    assert load_custom_ops(None) == []
    with pytest.raises(UsageError, match="not a folder"):
        load_custom_ops(tmp_path / "nowhere")


def test_registration_needs_an_op_and_a_device() -> None:
    with pytest.raises(TypeError, match="is not an op"):
        register_op_estimator(torch.add)
    with pytest.raises(TypeError, match="not a device"):
        register_op_estimator("a::b", 3)
    register_op_estimator(torch.ops.aten.add.Tensor)(lambda info, device: PerformanceModel.Result(3e-6))
    assert simulate_op(make("aten::add", arg("self", meta(8))), DEVICE).time_us == pytest.approx(3.0)


def test_registering_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(GOOD.format(name="X", us=1))
    code = f"""
        import sys
        from opreplay.replay.ascend.custom import load_custom_ops
        load_custom_ops({str(tmp_path)!r})
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_the_launch_of_properties_follows_the_cores_that_their_bytes_occupy() -> None:
    def launch(read: float, gp_ops: float = 0.0, mma_ops: float = 0.0) -> float:
        ops = {torch.float32: ComputeOps(gp_ops=gp_ops, mma_ops=mma_ops)}
        return terms_of(PerformanceProperties(memory_read_bytes=read, compute_ops=ops), DEVICE)["launch"]

    rates = DEVICE.rates
    assert launch(256) == rates.launch_one_us == launch(256, gp_ops=64)
    assert launch(256) < launch(16 << 10) < launch(64 << 10) < launch(1 << 30) == rates.launch_full_us, "of 40 cores"
    assert launch(256, gp_ops=1e9) == launch(1 << 30), "much computing occupies cores as well"
    assert launch(256, gp_ops=64, mma_ops=64) == rates.cube_launch_us
    assert rates.cube_launch_us < launch(1 << 30, gp_ops=64, mma_ops=64) == rates.mix_launch_us
