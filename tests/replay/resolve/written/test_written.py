"""Calls as written to ops: overloads, values, users' functions, sweeps; and all of a trace read back from its text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import opreplay
from opreplay.replay import plugins
from opreplay.replay.ascend.devices.file import load_device
from opreplay.replay.ascend.lowering import lower
from opreplay.replay.ascend.simulate.op import simulate_op
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.ir.notation import call_text, parse_call
from opreplay.replay.ir.reasons import NotReplayable, Reason
from opreplay.replay.report.snippet import snippet
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.resolve.written.call import op_of_written
from opreplay.replay.resolve.written.sweep import Written, calls_of_file, is_refused, over_sizes, plan_of_calls
from opreplay.traces.errors import UsageError
from opreplay.traces.samples import sample_path


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    plugins.clear_registrations()


def written(text: str) -> ReplayOp:
    return op_of_written(parse_call(text), Policy())


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["transformer_infer", "cnn_train"])
def test_every_call_of_a_trace_is_read_back_as_it_was(sample: str) -> None:
    for op in opreplay.open(sample_path(sample), select="all").plan.ops:
        if op.reason is not None:
            continue
        again = written(call_text(op))
        assert (again.called, again.overload) == (op.called, op.overload), call_text(op)
        found = {arg.name: arg for arg in again.args}
        for arg in op.args:
            assert found[arg.name].value == arg.value, call_text(op)
            assert len(found[arg.name].tensors) == len(arg.tensors), call_text(op)
            for ours, theirs in zip(found[arg.name].tensors, arg.tensors, strict=True):
                assert (ours and (ours.shape, ours.dtype)) == (theirs and (theirs.shape, theirs.dtype))


def test_the_overload_is_told_by_the_arguments_or_named() -> None:
    assert written("aten::add(f32[3], f32[3])").overload == "Tensor"
    assert written("aten::add(f32[3], 2)").overload == "Scalar"
    assert written("aten::add.Scalar(f32[3], 2.5, alpha=2)").overload == "Scalar"
    assert written("aten::relu.default(f32[3])").overload == ""
    with pytest.raises(UsageError, match="has no overload Tensors"):
        written("aten::add.Tensors(f32[3], f32[3])")


def test_values_have_the_types_of_the_schema() -> None:
    op = written("aten::to.dtype_layout(f32[3], dtype=torch.float16, layout=torch.strided, device='cpu', copy=True)")
    kinds = {arg.name: (arg.type, arg.value) for arg in op.args if not arg.tensors}
    assert kinds == {
        "dtype": ("ScalarType", "torch.float16"),
        "layout": ("Layout", "torch.strided"),
        "device": ("Device", "cpu"),
        "copy": ("bool", True),
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("aten::mm()", "no overload of aten::mm accepts"),
        ("aten::cat([f32[2], 3])", "contains tensors and other values"),
        ("aten::view(f32[4], [[2, 2]])", "takes a list like this"),
        ("aten::no_such_op(f32[4])", "cannot be called"),
        ("nowhere::op(4)", "policy"),
    ],
)
def test_what_cannot_be_called_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        written(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "aten::mm(f32[2,2])",
            "metadata missing: no overload of aten::mm accepts these arguments; its schema: aten::mm(",
        ),
        ("aten::mm(f32[2,2], f32[2,2], 3)", "metadata missing: no overload"),
        ("aten::mm(f32[2,2], other=f32[2,2])", "metadata missing: no overload"),
        ("nowhere::op(f32[4])", "policy: namespace nowhere is on no allow-list"),
        ("npu::npu_no_such_matmul(f16[64,32], f16[32,16])", "library missing: torch_npu"),
        ("aten::from_file('/etc/passwd')", "policy: argument 'filename'"),
    ],
)
def test_a_call_that_nothing_here_runs_has_its_reason(text: str, reason: str) -> None:
    op = written(text)
    assert op.resolved_by is None
    assert str(op.reason).startswith(reason)


def test_shapes_that_do_not_go_together_are_no_time() -> None:
    plan, ids = plan_of_calls(over_sizes(["aten::mm(f32[4,8], f32[n,3])"], ["n=8,9"]))
    reasons = {op.id: op.reason for op in plan.ops}
    assert reasons[ids[0]] is None
    assert "8] X [9" in str(reasons[ids[1]])


def test_every_combination_and_each_op_once() -> None:
    cases = over_sizes(["aten::mm(f32[m,n], f32[n,m])", "aten::relu(f32[m])"], ["m=1,2", "n=2^1..2^3"])
    assert len(cases) == 2 * 3 + 2
    assert cases[1] == Written(text="aten::mm(f32[m,n], f32[n,m])", sizes={"m": 1, "n": 4})
    plan, ids = plan_of_calls(over_sizes(["aten::relu(f32[n//2])"], ["n=4,5"]))
    assert (len(plan.ops), len(ids)) == (1, 2)


@pytest.mark.parametrize(
    ("texts", "sweeps", "why"),
    [
        (["aten::relu(f32[n])"], [], "n in .* has no value"),
        (["aten::relu(f32[n])"], ["n=1", "n=2"], "given twice"),
        (["aten::relu(f32[tokens])"], ["tokens=1", "token=2"], "token: no call has a size"),
        (["aten::mm(f32[a,b], f32[b,c])"], ["a=1..100", "b=1..100", "c=1..100"], "more than 10,000"),
    ],
)
def test_sweeps_that_make_no_sense_are_refused(texts: list[str], sweeps: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        over_sizes(texts, sweeps)
    assert caught.value.hint


def test_a_file_of_calls(tmp_path: Path) -> None:
    file = tmp_path / "ops.txt"
    file.write_text("# the two\n\naten::relu(f32[4])  # the first\n  aten::neg(f32[4])\nmy::op(f32[4], '#1') #\n")
    assert calls_of_file(str(file)) == ("aten::relu(f32[4])", "aten::neg(f32[4])", "my::op(f32[4], '#1')")
    file.write_text("# none\n")
    for path in (file, tmp_path / "none.txt", tmp_path):
        with pytest.raises(UsageError):
            calls_of_file(str(path))
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not text"):
        calls_of_file(str(file))


def test_users_executors_and_conversions_count() -> None:
    @opreplay.register_executor("mylib::scale", schema="(Tensor x, float factor=1.0) -> Tensor")
    def scale(x, factor):
        return x * factor

    @opreplay.register_conversion("mylib::norm")
    def norm(call):
        x, weight = call.args
        return opreplay.Conversion(
            op="aten::rms_norm", args=[x, weight], kwargs={"normalized_shape": [8], "eps": 1e-6}, note="eps is 1e-6"
        )

    @opreplay.register_executor("mylib::gate")
    def gate(inputs, attrs):
        return [inputs[0] * attrs["slope"]]

    assert opreplay.op("mylib::scale(f32[n], factor=2.0)", n=3)().shape == (3,)
    op = opreplay.op("mylib::norm(f32[4,8], f32[8])")
    assert op.ir.via == "aten::rms_norm"
    assert "eps is 1e-6" in str(op.assumptions)
    assert op().shape == (4, 8)
    assert opreplay.op("mylib::gate(f32[3], slope=2.0)")()[0].shape == (3,)
    with pytest.raises(UsageError, match="needs: register it"):
        opreplay.op("mylib::gate(f32[3], 2.0)")


def test_an_op_from_python_refuses_what_does_not_fit() -> None:
    with pytest.raises(UsageError, match="cannot be called"):
        opreplay.op("aten::mm(f32[4,8], f32[n,3])", n=9)
    with pytest.raises(UsageError, match="has no value"):
        opreplay.op("aten::mm(f32[4,8], f32[n,3])")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("aten::scaled_dot_product_attention(f32[1,2,8,4], f32[1,2,8,4], f32[1,2,8,4], is_causal=True)", "is_causal"),
        ("aten::layer_norm(f32[4,8], [8], eps=1e-6)", "eps"),
        ("aten::conv2d(f32[1,3,8,8], f32[4,3,3,3], padding=[1,1])", "padding"),
        ("aten::add(f32[4], f32[4], alpha=2)", "alpha"),
    ],
)
def test_what_stands_behind_an_argument_that_is_left_out_is_given_by_name(text: str, named: str) -> None:
    op = opreplay.op(text)
    assert op().shape
    assert f"{named}=" in snippet(op.ir)
    assert call_text(written(call_text(op.ir))) == call_text(op.ir)


def predicted(text: str) -> ReplayOp:
    return plan_of_calls([Written(text=text)])[0].ops[0]


def test_a_call_to_be_predicted_needs_no_op_that_runs_here() -> None:
    op = predicted("npu::npu_no_such_matmul(f16[64,32], f16[32,16], transposed=True)")
    assert (op.resolved_by, op.reason, op.unfit) == (None, Reason("library missing", "torch_npu"), True)
    assert [(arg.name, arg.value) for arg in op.args] == [("self", None), ("other", None), ("transposed", True)]
    assert lower(op).kernels[0].type == "MatMulV3"
    assert lower(op).assumed
    update = predicted("npu::ai_infra_scatter_nd_update_block(bf16[512,256], i32[64,1], bf16[64,256])")
    assert [arg.name for arg in update.args] == ["self", "indices", "updates"]


def test_from_python_it_is_simulated_and_not_measured() -> None:
    text = "npu::npu_apply_adam_w(f32[8,64], f32[8,64], f32[8,64], f32[8,64])"
    op = opreplay.op(text)
    assert op.simulate("910b2").time_us > 0
    for run in (op, op.measure):
        with pytest.raises(NotReplayable, match="library missing: torch_npu"):
            run()


def test_arguments_that_fit_no_overload_go_to_the_names_whose_types_they_have() -> None:
    op = predicted("aten::gru(f32[10,4,64], hidden_size=32)")
    assert op.unfit
    assert [arg.name for arg in op.args] == ["input", "hidden_size"]
    assert lower(op).known


def test_flags_that_lack_are_false_and_a_tensor_stands_for_a_list() -> None:
    softmax = predicted("aten::_softmax(f16[9,512], -1)")
    assert (softmax.resolved_by, softmax.unfit) == ("jit", False)
    assert [arg.value for arg in softmax.args if arg.name == "half_to_float"] == [False]
    assert softmax.outputs is not None
    grouped = predicted("npu::npu_grouped_matmul(f16[64,32], f16[2,32,16], group_list=[32,64], split_item=2)")
    assert {arg.name: len(arg.tensors) for arg in grouped.args}["weight"] == 1
    assert len(predicted("aten::stack(f32[4,8], f32[4,8])").args[0].tensors) == 2


def test_what_only_a_stand_in_refuses_is_predicted_all_the_same() -> None:
    op, refused = predicted("npu::npu_rms_norm(f16[8,64], f16[32])"), predicted("aten::mm(f32[4,8], f32[9,3])")
    assert (op.unfit, is_refused(op), is_refused(refused)) == (True, False, True)
    assert "the reference does not accept this call" in str(op.reason)
    types = predicted("npu::npu_dynamic_quant(bf16[8,64], dst_type=torch.quint4x2)")
    assert (types.resolved_by, is_refused(types)) == (None, False)
    assert simulate_op(types, load_device("910b2"), l2="cold").time_us > 1


@pytest.mark.parametrize(
    "text", ["aten::sofmax(f32[4])", "aten::no_such_op(f32[4])", "npu::no_such_op(3)", "npu(f32[4])"]
)
def test_a_slip_is_no_call_to_predict(text: str) -> None:
    with pytest.raises(UsageError):
        predicted(text)
