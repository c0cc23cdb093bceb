"""Situations in which a reader would conclude something wrong are told first, or refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from opreplay.traces.samples import sample_path
from tests.scenarios.conftest import kernel, launch, op
from tests.scenarios.events import owner

pytestmark = pytest.mark.slow

Console = Callable[..., Result]
SAMPLE = sample_path("transformer_infer")
SHAPE = [512, 512]
QUICK = ("--set", "op_time=1ms", "--set", "threads=1")


def flat(text: str) -> str:
    return " ".join(text.split())


def test_a_row_that_is_off_by_twenty_times_is_listed_first(console: Console, trace_of: Callable[..., Path]) -> None:
    trace = trace_of(
        *owner("aten::mm", 1, [SHAPE, SHAPE], 10.0),
        *owner("mylib::opaque", 2, [SHAPE], 900.0),
        *owner("aten::add", 3, [SHAPE, SHAPE], 1.0),
    )
    lines = console("simulate", trace, "--soc", "910b3").stdout.splitlines()
    marked = [i for i, line in enumerate(lines) if line.startswith("! ")]
    assert len(marked) == 1, "the small rows stay below 1 % of the time, the product is as it was"
    assert marked[0] < next(i for i, line in enumerate(lines) if "80 % band" in line)
    told = flat(" ".join(lines))
    assert "! mylib::opaque" in told
    assert "no cost rule for the op, predicted by bytes only" in told
    facts = json.loads(console("plan", trace, "--soc", "910b3", "--format", "json").stdout)
    assert [bool(op["suspicions"]) for op in facts["unique_ops"]] == [True, False, False]


def test_a_gpu_trace_on_a_cpu_is_said_not_to_be_comparable(
    console: Console, trace_of: Callable[..., Path], tmp_path: Path
) -> None:
    trace, out = trace_of(*owner("aten::mm", 1, [SHAPE, SHAPE], 0.001)), tmp_path / "r.jsonl"
    lines = console("run", trace, *QUICK, "-o", out).stdout.splitlines()
    assert lines[1] == "times are not comparable: recorded on NVIDIA H100, replayed on a CPU"
    (op,) = [json.loads(line) for line in out.read_text().splitlines() if '"record":"op"' in line]
    assert not any("measured" in one for one in op["suspicions"]), "a CPU against a GPU is no contradiction"
    cpu = console("run", SAMPLE, *QUICK, "--top", 1)
    assert "not comparable" not in cpu.stdout


def test_a_trace_whose_device_work_has_no_op_is_said_not_to_be_comparable(
    console: Console, trace_of: Callable[..., Path], tmp_path: Path
) -> None:
    """An MTIA's work belongs to no op, so that host times are left: those of asking for it, not of a CPU's work."""
    call = op("aten::mm", 1, [SHAPE, SHAPE], ["float", "float"], dur=0.5)
    trace, out = trace_of(call, kernel("pe_exe", 5000, 40.0, 9), device="ARTEMIS"), tmp_path / "r.jsonl"
    lines = console("run", trace, "--select", "all", *QUICK, "-o", out).stdout.splitlines()
    assert lines[1].startswith("times are not comparable: the recording on ARTEMIS has only host times")
    (found,) = [json.loads(line) for line in out.read_text().splitlines() if '"record":"op"' in line]
    assert not found["suspicions"]


def test_the_headline_tells_stand_ins_by_their_share_of_time(console: Console, trace_of: Callable[..., Path]) -> None:
    """vLLM is not installed: its layer runs through a stand-in whose weights are invented."""
    hidden, logits = [32, 64], [32, 8]
    trace = trace_of(
        *owner("aten::mm", 1, [SHAPE, SHAPE], 180.0),
        *owner("vllm::moe_forward", 2, [hidden, logits, []], 521.0, ["c10::BFloat16", "c10::BFloat16", ""]),
        *owner("_C::silu_and_mul", 3, [[32, 64], [32, 128]], 115.0),
        *owner("nolib::opaque", 4, [SHAPE], 184.0),
    )
    first = console("plan", trace).stdout.splitlines()[0]
    assert "= 81.6 % of device time = 18.0 % torch + 63.6 % stand-ins (52.1 % with invented weights)" in first
    explained = flat(console("plan", trace, "--explain", "vllm::moe_forward").stdout)
    assert "invented: 8 experts of 64 x 64 with 16 bits, 2 per token" in explained


@pytest.mark.parametrize("command", ["run", "plan", "simulate", "export"])
@pytest.mark.parametrize(
    ("selection", "hint"),
    [
        (("--include", "mm"), "The nearest names are aten::mm, aten::addmm"),
        (("--include", "aten::mn"), "The nearest names are aten::mm"),
        (("--include", "#9"), "The selection contains 2 ops, #1 to #2."),
        (("--exclude", "*"), "The heaviest ops are aten::"),
    ],
)
def test_an_empty_selection_is_an_error_with_the_nearest_names(
    console: Console, trace_of: Callable[..., Path], tmp_path: Path, command: str, selection: tuple[str, str], hint: str
) -> None:
    trace = trace_of(*owner("aten::mm", 1, [SHAPE, SHAPE], 9.0), *owner("aten::addmm", 2, [[512], SHAPE, SHAPE], 9.0))
    more = {"simulate": ("--soc", "910b3"), "export": ("-o", tmp_path / "b")}.get(command, ())
    assert hint in flat(console(command, trace, *selection, *more, code=2).stderr)


@pytest.mark.parametrize("option", ["--include", "--exclude"])
def test_a_list_of_names_is_one_pattern(console: Console, trace_of: Callable[..., Path], option: str) -> None:
    trace = trace_of(*owner("aten::mm", 1, [SHAPE, SHAPE], 9.0), *owner("aten::add", 2, [SHAPE, SHAPE], 5.0))
    told = flat(console("plan", trace, option, "aten::mm,aten::add", code=2).stderr)
    assert f"{option} aten::mm {option} aten::add" in told


def test_a_recorded_op_that_is_not_selected_is_no_nearest_name(console: Console, trace_of: Callable[..., Path]) -> None:
    inner = op("aten::matmul", 900, [SHAPE, SHAPE], ["float", "float"], dur=0.5)
    trace = trace_of(*owner("aten::mm", 1, [SHAPE, SHAPE], 9.0), inner)
    told = flat(console("plan", trace, "--include", "aten::matmul", code=2).stderr)
    assert "left out by --select owner: aten::matmul" in told
    assert console("plan", trace, "--include", "aten::matmul", "--select", "all")


def test_a_peak_that_changes_nothing_is_refused(console: Console, trace_of: Callable[..., Path]) -> None:
    trace = trace_of(*owner("aten::mm", 1, [SHAPE, SHAPE], 9.0))
    assert "--by roofline" in console("inspect", trace, "--by", "kernel", "--peak", "H100", code=2).stderr
    assert "no device work" in console("inspect", SAMPLE, "--by", "roofline", "--peak", "H100", code=2).stderr


def test_all_rows_of_a_table_are_printed_on_request(console: Console) -> None:
    rows = json.loads(console("inspect", SAMPLE, "--by", "roofline", "--format", "json").stdout)["all_rows"]
    assert rows > 30
    printed = console("inspect", SAMPLE, "--by", "roofline", "--all").stdout
    assert "for more, use --top N" not in printed
    assert "for more, use --top N" in console("inspect", SAMPLE, "--by", "roofline").stdout


def test_one_op_is_taken_by_place_id_name_or_glob(console: Console, trace_of: Callable[..., Path]) -> None:
    trace = trace_of(*owner("aten::mm", 1, [SHAPE, SHAPE], 9.0), *owner("aten::add", 2, [SHAPE, SHAPE], 5.0))

    def names(*selection: object) -> list[str]:
        plan = json.loads(console("plan", trace, *selection, "--format", "json").stdout)
        return [op["name"] for op in plan["unique_ops"]]

    (mm, add) = json.loads(console("plan", trace, "--format", "json").stdout)["unique_ops"]
    assert (
        names("--include", "#2")
        == names("--include", "aten::add")
        == names("--include", add["id"][:6])
        == ["aten::add"]
    )
    assert names("--include", "*m") == ["aten::mm"] == names("--include", mm["id"])
    assert names("--include", "#1", "--include", "#2") == ["aten::mm", "aten::add"]


def test_an_empty_bundle_is_an_error(console: Console, trace_of: Callable[..., Path], tmp_path: Path) -> None:
    trace = trace_of(*owner("nolib::opaque", 1, [SHAPE], 9.0))
    done = console("export", trace, "-o", tmp_path / "b", code=2)
    assert "nothing to export" in done.stderr
    assert not (tmp_path / "b").exists()


def test_an_initializer_that_names_no_op_of_the_plan_is_an_error(
    console: Console, trace_of: Callable[..., Path], tmp_path: Path
) -> None:
    trace = trace_of(*owner("aten::mm", 1, [SHAPE, SHAPE], 9.0))
    module = tmp_path / "init.py"
    module.write_text(
        "from opreplay.initializers.base import CustomInit\n"
        "from opreplay.initializers.extensions import register_initializer\n"
        "@register_initializer\n"
        "class Mine(CustomInit):\n"
        "    name = 'mine'\n"
        "    op_patterns = ('aten::mmm',)\n"
        "    def initialize(self, context):\n"
        "        return 'nothing'\n"
    )
    told = flat(console("plan", trace, "--plugin", module, code=2).stderr)
    assert "none of its initializers is for an op of the plan" in told
    assert "The nearest names are aten::mm." in told
    assert "no op of the plan is initialized by moe_routing" in flat(
        console("simulate", trace, "--soc", "910b3", "--set", "init_arg=moe_routing.distribution=zipf", code=2).stderr
    )


def test_sizes_beyond_any_memory_are_refused_in_words(console: Console, trace_of: Callable[..., Path]) -> None:
    """2^40 in twelve dimensions printed numbers of fifty digits, took 2·10⁹ s, and ended `simulate`."""
    huge = [2**40] * 12
    trace = trace_of(*owner("aten::relu", 1, [huge], 5.0), *owner("aten::mm", 2, [SHAPE, SHAPE], 5.0))
    for command in ("plan", "simulate"):
        facts = json.loads(console(command, trace, "--soc", "910b3", "--format", "json").stdout)
        relu = next(op for op in facts["unique_ops"] if op["name"] == "aten::relu")
        assert not relu.get("simulated")
        assert not relu.get("simulated_us")
        text = flat(console(command, trace, "--soc", "910b3").stdout)
        assert "1099511627776" not in text
    assert "sizes larger than any memory: argument 0 of 1.1e+12 x 1.1e+" in flat(console("plan", trace).stdout)
    assert "50.0 % not predicted" in console("simulate", trace, "--soc", "910b3").stdout.splitlines()[0]


def test_results_beyond_any_memory_are_refused_in_words(console: Console, trace_of: Callable[..., Path]) -> None:
    """Sizes that arguments make together, or that are numbers: 10⁹ s and 56386465468741296 % of the peak were told."""
    far = 2**38
    trace = trace_of(
        *owner("aten::mul", 1, [[far, 1], [1, far]], 5.0),
        *owner("aten::mm", 2, [[far, 1], [1, far]], 5.0),
        op("aten::zeros", 300, [[]] * 5, ["ScalarList", "Scalar", "", "", ""], [f"[{far}, {far}]", "6", "", "", ""]),
        launch(305, 3),
        kernel("fill", 2e6, 5.0, 3),
        *owner("aten::outer", 4, [[2**30], [2**30]], 5.0),
    )
    for command in ("plan", "simulate"):
        facts = json.loads(console(command, trace, "--soc", "910b3", "--format", "json").stdout)
        assert not any(one.get("simulated") or one.get("simulated_us") for one in facts["unique_ops"]), command
    assert "100.0 % not predicted" in console("simulate", trace, "--soc", "910b3").stdout.splitlines()[0]
    told = flat(console("plan", trace).stdout)
    assert "sizes larger than any memory: a result exceeds 2^63 elements" in told
    assert "sizes larger than any memory: result 0 of 1.07e+09 x 1.07e+" in told
    assert " PB" not in console("timeline", trace, "--soc", "910b3").stdout
    assert "nothing to export" in console("export", trace, "-o", trace.parent / "b", code=2).stderr
    rows = json.loads(console("inspect", trace, "--by", "op", "--format", "json").stdout)["rows"]
    assert {row["name"]: row["peak_share"] for row in rows}["aten::mm"] is None
    written = console("op", f"aten::zeros([{far}, {far}])", "--no-measure", code=1)
    assert "sizes larger than any memory" in flat(written.stdout)


def test_numbers_that_no_call_has_end_no_command(console: Console, trace_of: Callable[..., Path]) -> None:
    """An integer of 390 digits ended `plan` with a traceback; a window of 2^62 was costed with 10⁸ s."""
    window = ["", "", "", "[9223372036854775807, 0]", "[-1, 4611686018427387904]", "[1099511627776, 1]", "0"]
    trace = trace_of(
        op("aten::add", 1, [[4], [4], []], ["float", "float", "Scalar"], ["", "", "1" + "0" * 390]),
        op(
            "aten::conv2d",
            20,
            [[1, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], []],
            ["float", "float", "", "ScalarList", "ScalarList", "ScalarList", "Scalar"],
            window,
        ),
        op("nolib::odd", 40, [[4], []], ["float", "ScalarList"], ["", "[1" + "0" * 60 + "]"]),
        device=None,
    )
    for command in ("plan", "simulate"):
        done = console(command, trace, "--select", "all", "--soc", "910b3", "--format", "json")
        predicted = {
            one["name"]: one.get("simulated") or one.get("simulated_us")
            for one in json.loads(done.stdout)["unique_ops"]
        }
        assert not predicted["aten::conv2d"], command
    assert "argument alpha is not a 64-bit integer" in flat(console("plan", trace, "--select", "all").stdout)


def test_work_that_takes_less_than_no_time_is_counted_as_lost(console: Console, trace_of: Callable[..., Path]) -> None:
    """A kernel of -5 µs took away from the others: an op had 500 % of the time."""
    events = [*owner("aten::mm", 1, [SHAPE, SHAPE], 5.0), *owner("aten::relu", 2, [SHAPE], -5.0)]
    events[3]["dur"] = -7.0
    done = console("inspect", trace_of(*events), "--format", "json")
    facts = json.loads(done.stdout)
    assert facts["device_time_us"] == 5.0
    assert facts["losses"] == {"unreadable duration (kernels)": 1, "unreadable duration (ops)": 1}


def test_a_call_that_no_kernel_takes_is_not_predicted(console: Console) -> None:
    told = console("op", "aten::softmax(f32[8,8], 5)", "--no-measure", code=1).stdout
    assert "Dimension out of range (expected to be in range of [-2, 1], but got 5)" in flat(told)


def test_an_npu_without_its_library_is_missing_as_any_device_is(console: Console) -> None:
    done = console("run", SAMPLE, "--device", "npu", *QUICK, "--top", 1, code=4)
    assert "device npu is not available: torch_npu is not installed" in done.stderr
    assert "--soc 910b3" in done.stderr


def test_a_limit_that_is_none_is_refused(console: Console) -> None:
    assert "unknown limit 'nesting'" in console("inspect", SAMPLE, "--set", "limit=nesting=3", code=2).stderr


def ranked(folder: Path, name: str, rank: int, *events: dict[str, Any], world: int = 2) -> None:
    info = {"rank": rank, "world_size": world, "backend": "nccl"}
    (folder / name).write_text(json.dumps({"distributedInfo": info, "traceEvents": list(events)}))


def test_a_damaged_file_in_a_folder_counts_like_one_in_a_glob(console: Console, tmp_path: Path) -> None:
    ranked(tmp_path, "a.json", 0, *owner("aten::mm", 1, [SHAPE, SHAPE], 9.0))
    (tmp_path / "config.json").write_text('{"model": "x"}')
    done = console("batch", tmp_path, *QUICK)
    assert "left out: " in done.stderr
    (tmp_path / "b.json.gz").write_bytes(b"\x1f\x8b\x08\x00 cut off")
    done = console("batch", tmp_path, *QUICK, code=3)
    assert "refused: " in done.stderr
    assert "b.json.gz" in done.stderr


def test_two_models_are_not_two_ranks(console: Console, tmp_path: Path) -> None:
    for rank, name in enumerate(("llama8b.json", "llama70b.json")):
        ranked(tmp_path, name, rank, *owner("aten::mm", 1, [SHAPE, SHAPE], 9.0))
    plan = console("batch", tmp_path, *QUICK, "--dry-run")
    assert plan.exit_code == 0
    out = tmp_path / "out.jsonl"
    console("batch", tmp_path / "*.json", *QUICK, "-o", out)
    jobs = {line["job"] for line in map(json.loads, out.read_text().splitlines()) if line["record"] == "trace"}
    assert jobs == {"llama8b.json", "llama70b.json"}, "each keeps its name"


def test_tensors_that_index_are_whole_numbers(console: Console, trace_of: Callable[..., Path]) -> None:
    """Lists have no element types in a trace: indices were float32 as all else, and the call failed."""
    call = op("aten::index", 1, [[4, 8], [[3]]], ["float", "TensorList"])
    trace = trace_of(call, device=None)
    facts = json.loads(console("plan", trace, "--select", "all", "--meta", "--format", "json").stdout)
    assert facts["unique_ops"][0]["call"] == "aten::index.Tensor(f32[4,8], [i64[3]])"
    assert facts["meta"]["counts"]["ok"] == 1


def test_an_explanation_ends_with_the_call_as_pytorch(console: Console, trace_of: Callable[..., Path]) -> None:
    trace = trace_of(*owner("aten::mm", 1, [SHAPE, SHAPE], 9.0))
    lines = console("plan", trace, "--explain", "#1").stdout.rstrip().splitlines()
    assert lines[-1] == "result = torch.ops.aten.mm.default(self, mat2)"
    assert "self = torch.randn((512, 512), dtype=torch.bfloat16, device='cpu')" in lines


@pytest.mark.parametrize("command", [("plan",), ("simulate",), ("batch", "--dry-run", "--allow-damaged")])
def test_what_a_cut_trace_lost_is_said_by_every_command(
    console: Console, tmp_path: Path, command: tuple[str, ...]
) -> None:
    cut = tmp_path / "cut.json"
    whole = gzip.decompress(Path(SAMPLE).read_bytes())
    cut.write_bytes(whole[: len(whole) // 2])
    assert "cut.json: not everything could be read (truncated file" in flat(console(*command, cut, "--top", 2).stderr)
