"""The same call has the same time in every command and in Python, whether or not anything here can run it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import opreplay
from opreplay.cli.main import opreplay as cli
from opreplay.replay.ascend.calibrate.calls import validate_calls
from opreplay.replay.ascend.measured.call_tables import BETWEEN, read_call_table
from opreplay.replay.ir.notation import parse_call
from opreplay.replay.ir.plan_file import dump_plan
from opreplay.replay.job.cases import Calls, cases_of
from opreplay.replay.job.job import Job
from opreplay.replay.job.predicting import Faults
from opreplay.replay.job.settings import Settings
from opreplay.replay.resolve.written.sweep import Written, plan_of_calls
from opreplay.replay.results.of_plan import call_of
from opreplay.replay.results.records import L2State
from opreplay.traces.errors import OpReplayError, UsageError
from opreplay.traces.model import TensorMeta, contiguous_strides

SOC = "910b3"
VIEWS = (
    "aten::view(f32[64,64], [4096])",
    "aten::t(bf16[512,1024])",
    "aten::expand(f32[1,64], [32,64])",
    "aten::slice.Tensor(f16[128,64], 0, 2, 66)",
    "aten::detach(f32[8])",
    "_c10d_functional::wait_tensor(bf16[16])",
)
"""They take no time."""
CALLS = (
    # products
    "aten::mm(bf16[4096,1024], bf16[1024,3072])",
    "aten::mm(bf16[4096,1024], bf16[1024,3072]{1,1024})",
    "aten::addmm(f16[512], f16[1024,768], f16[768,512])",
    "aten::bmm(f32[16,128,64], f32[16,64,128])",
    "aten::linear(bf16[8,1,4096], bf16[11008,4096])",
    "aten::convolution(f16[8,64,56,56], f16[128,64,3,3], None, [1,1], [1,1], [1,1], False, [0,0], 1)",
    "aten::convolution_backward(f16[8,16,28,28], f16[8,8,28,28], f16[16,8,3,3], None, [1,1], [1,1], [1,1], False, "
    "[0,0], 1, [True,True,False])",
    "aten::dot(f32[4096], f32[4096])",
    "aten::mm(f64[64,64], f64[64,64])",
    # elementwise, strided and in place
    "aten::add(f32[4096,4096], f32[4096,4096])",
    "aten::add_(f16[1024,1024], f16[1024,1024])",
    "aten::mul(bf16[64,4096]{1,64}, bf16[64,4096])",
    "aten::gelu(bf16[8192,1024])",
    "aten::where(bool[512,512], f32[512,512], f32[512,512])",
    "aten::copy_(f16[2048,2048], f32[2048,2048])",
    "aten::contiguous(f16[64,128,64]{64,4096,1})",
    "aten::fill_(f32[1000000], 0.0)",
    "aten::zeros([1024,1024], dtype=torch.float16)",
    # rows, sums, scans, sorting
    "aten::_softmax(f16[512,4096], -1, False)",
    "aten::native_layer_norm(bf16[4096,1024], [1024], bf16[1024], bf16[1024], 1e-5)",
    "aten::sum(f32[1024,4096], [1])",
    "aten::sum(f32[1024,4096], [0])",
    "aten::argmin(f32[512,1024], 1)",
    "aten::cumsum(f32[128,8192], 1)",
    "aten::topk(f32[64,32000], 40)",
    "aten::sort(f32[64,4096])",
    # lookups and cache writes
    "aten::embedding(bf16[32000,4096], i64[8,128])",
    "aten::index_select(f32[65536,128], 0, i64[4096])",
    "aten::index_put_(f16[4096,128], [i64[32]], f16[32,128])",
    "aten::scatter(f32[512,1024], 1, i64[512,16], f32[512,16])",
    "aten::gather(f32[512,1024], 1, i64[512,16])",
    # attention
    "aten::scaled_dot_product_attention(f16[1,16,2048,128], f16[1,16,2048,128], f16[1,16,2048,128], is_causal=True)",
    "npu::npu_fusion_attention(bf16[2,1024,2048], bf16[2,1024,2048], bf16[2,1024,2048], 16, 'BSH')",
    "npu::npu_fused_infer_attention_score(bf16[1,1,8,512], bf16[1,128,8,512], bf16[1,128,8,512], num_heads=8, "
    "num_key_value_heads=8, input_layout='BSND', causal=False)",
    "npu::npu_mla_prolog_v3(bf16[1,1,7168], bf16[7168,1536], bf16[1536,24576], bf16[128,128,512], bf16[7168,576], "
    "bf16[1536], bf16[512], bf16[1,1,64], bf16[1,1,64])",
    # MoE and quantised
    "npu::npu_moe_gating_top_k_softmax(bf16[512,64], None, 6)",
    "npu::npu_moe_init_routing(bf16[64,1024], i32[64,6], i32[64,6], 64)",
    "npu::npu_grouped_matmul([bf16[128,512]], [bf16[8,512,512]], bias=f32[8,512], "
    "group_list=[22,44,44,65,86,86,107,128], split_item=2, group_type=0)",
    "npu::npu_grouped_matmul(f16[1024,1024], f16[32,1024,4096], i64[32])",
    "npu::npu_quant_matmul(i8[64,512], i8[512,64], f32[64], output_dtype=torch.bfloat16)",
    "npu::npu_dynamic_quant(bf16[64,64], dst_type=torch.quint4x2)",
    "npu::npu_dequant_swiglu_quant(bf16[4096,4096], None, None, f32[1,2048], activate_left=False, quant_mode=1)",
    # vendors' others
    "npu::npu_apply_adam_w(f32[512,2049], f32[512,2049], f32[512,2049], f32[512,2049])",
    "npu::npu_roi_align(f16[2,127,31,33], f16[50,5], 0.0625, 7, 7, 2, 0)",
    "npu::npu_add_rms_norm_dynamic_quant(bf16[1021,1023], bf16[1021,1023], bf16[1023], output_mask=[True,True])",
    "npu::npu_rotary_mul(bf16[4,64,8,128], bf16[4,64,1,128], bf16[4,64,1,128])",
    "npu::npu_apply_rotary_pos_emb(bf16[509,4,4,128], bf16[509,4,4,128], bf16[4,64], bf16[4,64], rotary_mode='half')",
    "npu::npu_swiglu(bf16[512,8192])",
    "npu::npu_rms_norm(f16[8,64], f16[32])",
    "torchvision::nms(f32[1009,4], f32[1009], 0.3)",
    "_C::silu_and_mul(bf16[64,4096], bf16[64,8192])",
    "vllm::no_such_rms_norm(bf16[64,4096], bf16[4096])",
    "nowhere::fused(bf16[64,4096], 3)",
    # with communication
    "npu::matmul_all_reduce(bf16[1024,512], bf16[512,1024], None, world_size=8, reduce_op='sum')",
    "npu::moe_distribute_dispatch_v2(bf16[127,8192], i32[127,4], world_size=8, moe_expert_num=312)",
    "_c10d_functional::all_reduce(bf16[1048576], 'sum', '0')",
    # what no overload takes as it is written
    "aten::_softmax(f16[2,1024,1024], -1)",
    "aten::zeros(f16[1000,1024])",
    "aten::gru(bf16[15,12,128], hidden_size=64, num_layers=2, bidirectional=True)",
    "aten::addmv.out(bf16[256], bf16[256,256], bf16[256])",
)
REFUSED = ("aten::mm(f32[4,8], f32[9,3])", "aten::softmax(f32[8,8], 5)")
"""Arguments that do not go together."""


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("one_answer") / "plan.json"
    plan, ids = plan_of_calls([Written(text=text) for text in (*CALLS, *VIEWS)])
    assert len(set(ids)) == len(ids)
    path.write_bytes(dump_plan(plan))
    return path


def facts_of(*arguments: object, code: int = 0) -> dict[str, Any]:
    done = CliRunner().invoke(cli, list(map(str, arguments)))
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def of_python(texts: Sequence[str], l2: L2State) -> Iterator[tuple[str, float]]:
    for text in texts:
        op = opreplay.op(text)
        yield op.id, op.simulate(SOC, l2=l2).time_us


@pytest.mark.slow
@pytest.mark.parametrize("l2", ["cold", "warm"])
def test_a_call_takes_as_long_in_every_command(plan_file: Path, l2: L2State) -> None:
    python = dict(of_python((*CALLS, *VIEWS), l2))
    options = ("--soc", SOC, "--l2", l2, "--format", "json")
    plan = facts_of("plan", plan_file, *options)["unique_ops"]
    step = facts_of("simulate", plan_file, *options)["unique_ops"]
    alone = facts_of("op", *CALLS, *VIEWS, "--no-measure", *options)["cases"]
    assert {row["id"]: row["simulated_us"].get(SOC) for row in plan} == pytest.approx(python, rel=1e-9)
    assert {row["id"]: row["simulated"][SOC]["time_us"] for row in step} == pytest.approx(python, rel=1e-9)
    assert [row["simulated_us"].get(SOC) for row in alone] == pytest.approx(list(python.values()), rel=1e-9)
    assert sum(1 for us in python.values() if us > 0) == len(CALLS)


@pytest.mark.slow
@pytest.mark.parametrize("l2", ["cold", "warm"])
def test_validate_predicts_what_op_says(tmp_path: Path, l2: L2State) -> None:
    table = tmp_path / "calls.csv"
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["op", "time_us", "soc", "l2"])
        rows.writerows([text, 3.25, SOC, l2] for text in CALLS)
    found = facts_of("validate", table, "--worst", len(CALLS) + 1, "--format", "json")
    assert found["rows"]["dropped"] == {}
    predicted = sorted(row["predicted_us"] for row in found["worst"])
    assert predicted == pytest.approx(sorted(us for _, us in of_python(CALLS, l2)), rel=1e-9)


def test_what_is_wrong_is_refused_everywhere(tmp_path: Path) -> None:
    table = tmp_path / "calls.csv"
    table.write_text("op,time_us,soc\n" + "".join(f'"{text}",3,{SOC}\n' for text in (*REFUSED, CALLS[0])))
    assert len(read_call_table(table).calls) == 1
    found = facts_of("op", *REFUSED, "--no-measure", "--format", "json", code=1)["cases"]
    assert [row["simulated_us"] for row in found] == [{}, {}]
    for text in REFUSED:
        with pytest.raises(UsageError):
            opreplay.op(text)


def recorded(text: str) -> dict[str, Any]:
    """The call as a profile records it: arguments by position, without names."""
    fields: list[tuple[Any, str, Any, str]] = []
    for value in parse_call(text).args:
        if isinstance(value, TensorMeta):
            spelled = {"float16": "c10::Half", "bfloat16": "c10::BFloat16", "float32": "float", "int64": "long int"}
            strides = value.strides or contiguous_strides(value.shape)
            fields.append((list(value.shape), spelled[value.dtype], list(strides), ""))
        else:
            fields.append(([], "ScalarList" if isinstance(value, list) else "Scalar", [], str(value)))
    columns = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
    return {"name": text.split("(")[0], "dur": 9, "args": dict(zip(columns, zip(*fields, strict=True), strict=True))}


@pytest.mark.parametrize(
    "text",
    [
        "aten::mm(bf16[512,256], bf16[256,1024])",
        "aten::sum(f32[1024,4096], [0], False)",
        "npu::npu_apply_adam_w(f32[512,2049], f32[512,2049], f32[512,2049], f32[512,2049])",
        "npu::npu_roi_align(f32[2,1023,31,31], f32[100,5], 0.0625, 7, 7, 1, 0)",
        "torchvision::nms(f32[1009,4], f32[1009], 0.3)",
        "npu::npu_new_grouped_matmul_v9(bf16[64,256], bf16[8,256,512], i64[8])",
        "vllm::no_such_rms_norm(bf16[64,4096], bf16[4096])",
        "npu::nobody_knows_this(f32[640,1000], f32[4])",
    ],
)
def test_a_recorded_call_of_a_library_that_is_not_here_takes_as_long_as_a_written_one(text: str) -> None:
    of_profile = opreplay.op_of_event(recorded(text))
    assert of_profile.simulate(SOC).time_us == pytest.approx(opreplay.op(text).simulate(SOC).time_us, rel=1e-9)


def test_reports_hold_a_call_to_paste_where_the_arguments_have_names() -> None:
    of_profile = opreplay.op_of_event(recorded("npu::npu_roi_align(f32[2,512,31,31], f32[100,5], 0.5, 7, 7, 1, 0)"))
    to_paste = call_of(of_profile.ir)
    assert to_paste.startswith("npu::npu_roi_align(f32[2,512,31,31], f32[100,5], spatial_scale=0.5, pooled_height=7")
    again = opreplay.op(to_paste).simulate(SOC).time_us
    assert again == pytest.approx(of_profile.simulate(SOC).time_us, rel=1e-9)
    assert call_of(opreplay.op_of_event(recorded("npu::nobody_knows_this(f32[640,1000], f32[4])")).ir) == ""


WITH_TORCH_NPU = """
import json, sys
import torch
from opreplay.replay.ops.declared import published, schemas_in

library = torch.library.Library("npu", "FRAGMENT")
for name in schemas_in("npu"):
    defined = set()
    for _, schema in sorted(published(name), reverse=True):
        overload = schema.partition("(")[0]
        if overload not in defined:
            library.define(schema.partition("::")[2])
            defined.add(overload)

import opreplay
print(json.dumps([opreplay.op(text).simulate(sys.argv[1]).time_us for text in json.load(sys.stdin)]))
"""


@pytest.mark.slow
def test_a_call_of_torch_npu_takes_as_long_where_its_schemas_are_registered() -> None:
    texts = [text for text in CALLS if text.startswith("npu::")]
    command = [sys.executable, "-c", WITH_TORCH_NPU, SOC]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # References tell results of a few bytes that schemas alone do not.
    assert json.loads(done.stdout) == pytest.approx([us for _, us in of_python(texts, "cold")], rel=1e-6)


DELIVERED = ("ops_public.csv", "ops_delivered_2.csv")


@pytest.mark.slow
@pytest.mark.parametrize("name", DELIVERED)
def test_op_answers_the_measured_calls_of_many_people_as_validate_does(
    name: str, shared_ascend: Path, tmp_path: Path
) -> None:
    """A fifth of the rows, some of which are no calls; the exam `calls_answered` counts all."""
    with (shared_ascend / name).open(encoding="utf-8-sig", newline="") as file:
        texts = [row["op"].strip() for row in csv.DictReader(file)][::5]
    answered = dict(of_op(dict.fromkeys(texts)))
    assert sum(text in answered for text in texts) >= 0.95 * len(texts)
    table = tmp_path / "calls.csv"
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["op", "time_us", "soc", "l2"])
        rows.writerows([text, 3.25, SOC, "cold"] for text in dict.fromkeys(texts))
    found = read_call_table(table)
    predicted = [row.predicted_us for row in validate_calls([found]).compared]
    assert predicted == pytest.approx(
        [answered[call.text] for call in found.calls if answered.get(call.text)], rel=1e-9
    )
    assert {call.text for call in found.calls} == answered.keys()


def of_op(texts: Iterable[str]) -> Iterator[tuple[str, float]]:
    """(call, microseconds by `opreplay op`) of the calls, and of parts in sequence, that it answers."""
    for text in texts:
        parts = [Written(text=part) for part in text.split(BETWEEN)]
        times: list[float | None] = []
        for number, part in enumerate(parts):
            # Parts in sequence find in L2 what those before them left.
            state: L2State = "warm" if number else "cold"
            try:
                done = cases_of(Job.open(Calls([part]), None, Settings(l2=state), (SOC,)), Faults())
            except OpReplayError:
                times.append(None)
                break
            times.append(done.cases[0].result.simulated_us.get(SOC))
        if None not in times:
            yield text, sum(filter(None, times))
