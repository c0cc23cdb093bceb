"""What a user's function makes in several sizes, each captured and put on devices."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from opreplay.cli.main import opreplay
from opreplay.replay.ascend import load_device
from opreplay.replay.capture.sizes import sizes_of
from opreplay.replay.job.vary import vary_config, vary_file
from opreplay.replay.report.step.sized import headline
from opreplay.replay.report.step.sizes import fit_text, memory_text
from opreplay.replay.timeline.sized import SizedStep, SizedSteps
from opreplay.traces.errors import OpReplayError, UsageError

MAKE = """
import torch


def make(rows=16, width=64):
    return torch.nn.Linear(width, width), (torch.zeros(rows, width),)
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "sized_model.py").write_text(MAKE)
    return f"{tmp_path / 'sized_model.py'}:make"


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(opreplay, ["capture", *arguments])


@pytest.mark.slow
def test_a_function_makes_a_step_of_each_size(target: str) -> None:
    done = run(target, "--vary", "rows=1k,4k", "width=256,512", "--soc", "910b3", "--format", "json")
    assert done.exit_code == 0, done.stderr
    rows = {(row["sizes"]["rows"], row["sizes"]["width"]): row for row in json.loads(done.stdout)["rows"]}
    assert rows.keys() == {(1024, 256), (1024, 512), (4096, 256), (4096, 512)}
    assert rows[4096, 512]["step_us"] > rows[1024, 512]["step_us"]
    # The input, the product and weight with bias, in float32.
    assert rows[4096, 512]["memory_bytes"] == 4 * (2 * 4096 * 512 + 512 * 512 + 512)
    assert all(row["low_us"] <= row["step_us"] <= row["high_us"] for row in rows.values())


def test_sizes_that_the_function_does_not_take_are_refused(target: str) -> None:
    with pytest.raises(UsageError, match="batch"):
        vary_file(target, {}, sizes_of(["batch=1,8"]), [load_device("910b3")], lambda plan: plan)


def test_a_config_has_batches_and_contexts_alone() -> None:
    with pytest.raises(UsageError, match="rows"):
        vary_config("hf:config.json", {}, sizes_of(["rows=1,8"]), [], lambda plan: plan)


@pytest.mark.parametrize("text", ["rows", "rows=", "rows=0", "rows=a", "1=2", "rows=1,2 rows=4"])
def test_what_is_no_list_of_sizes_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        sizes_of([text])


OPTIMIZED = """
import torch


def make(layers=2):
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(layers)])
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.zeros(4, 8)

    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    return step, (inputs,)
"""


@pytest.mark.slow
def test_sizes_are_captured_as_on_the_device_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "optimized.py").write_text(OPTIMIZED)
    vary = (f"{tmp_path / 'optimized.py'}:make", "--vary", "layers=8", "--format", "json")
    on_cpu, on_npu = (json.loads(run(*vary, "--device", device).stdout)["rows"][0] for device in ("cpu", "npu"))
    assert on_npu["step_us"] < 0.8 * on_cpu["step_us"], "an NPU takes parameters in lists"


@pytest.mark.slow
def test_options_of_a_capture_are_those_of_each_size(target: str) -> None:
    vary = (target, "--vary", "rows=64", "width=32", "--format", "json")
    exported = json.loads(run(*vary, "--via", "export", "--set", "decompose=true").stdout)["rows"]
    assert exported[0]["step_us"] > 0
    assert "rank 5" in run(*vary, "--set", "world_size=2", "--set", "rank=5").stderr
    assert "--via export" in run(*vary, "--set", "decompose=true").stderr


@pytest.mark.parametrize("options", [("--check",), ("--trust",), ("--context", "64")])
def test_options_that_sizes_leave_without_effect_are_refused(target: str, options: tuple[str, ...]) -> None:
    refused = run(target, "--vary", "rows=64", *options)
    assert (refused.exit_code, options[0] in refused.stderr) == (2, True)


def test_a_size_is_given_once() -> None:
    with pytest.raises(UsageError, match="batch"):
        vary_config("hf:config.json", {"batch": 2}, sizes_of(["batch=1,8"]), [], lambda plan: plan)


@pytest.mark.slow
def test_the_table_is_written_as_page_csv_and_markdown(target: str, tmp_path: Path) -> None:
    """It was refused after the work was done: "--output is for a single plan"."""
    files = {suffix: tmp_path / f"sizes{suffix}" for suffix in (".html", ".csv", ".md")}
    for file in files.values():
        done = run(target, "--vary", "rows=1k,4k", "width=256", "--soc", "910b3", "--output", str(file))
        assert done.exit_code == 0, done.stderr
        assert done.stderr.splitlines() == [
            "capturing  1 of 2: rows 1,024, width 256",
            "capturing  2 of 2: rows 4,096, width 256",
        ]
    rows = list(csv.DictReader(files[".csv"].read_text().splitlines()))
    assert [(row["rows"], row["width"], row["soc"], row["fits"]) for row in rows] == [
        ("1024", "256", "910b3", "True"),
        ("4096", "256", "910b3", "True"),
    ]
    assert all(float(row["low_us"]) <= float(row["step_us"]) <= float(row["high_us"]) for row in rows)
    assert float(rows[0]["hbm_bytes"]) == 64 << 30
    assert files[".md"].read_text().splitlines()[0].startswith("### opreplay: sized")
    assert "Memory over rows" in files[".html"].read_text()


@pytest.mark.parametrize("file", ["plan.json", "missing/x.html"])
def test_files_that_cannot_be_written_are_refused_before_any_work(target: str, file: str) -> None:
    refused = run(target, "--vary", "rows=64", "--output", file)
    assert (refused.exit_code, "capturing" in refused.stderr) == (2, False)


def test_a_missing_config_is_reported_without_torch() -> None:
    code = (
        "import sys; sys.argv = ['opreplay', 'capture', 'hf:none.json', '--vary', 'batch=1']\n"
        "from opreplay.cli.start import main\n"
        "try: main()\nfinally: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (2, "False")
    assert "none.json" in done.stderr


def step(memory: float) -> SizedStep:
    """A step with this share of 64 GB."""
    bytes_ = int(memory * 64e9)
    return SizedStep(
        sizes={"rows": 1}, soc="910b3", step_us=1.0, low_us=1.0, high_us=1.0, graph_us=1.0, bound="device",
        memory_bytes=bytes_, fits=bytes_ <= 64e9, unpredicted_calls=0, hbm_bytes=64e9,
    )  # fmt: skip


@pytest.mark.parametrize(("memory", "fit"), [(0.5, "yes"), (0.95, "tight"), (1.2, "no")])
def test_fit_has_a_reserve(memory: float, fit: str) -> None:
    assert fit_text(step(memory)) == fit
    assert memory_text(step(memory)) == f"{64 * memory:.3g} of 64"


def test_memory_far_beyond_the_device_is_no_power_of_ten() -> None:
    assert memory_text(step(1050.0)) == "67,200 of 64"


VIT = {
    "model_type": "vit", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip


@pytest.mark.slow
def test_a_model_without_text_has_times_of_a_step_and_no_context(tmp_path: Path) -> None:
    """A ViT got "ms a token" and tokens/s that grew with a context that it does not have."""
    pytest.importorskip("transformers")
    config = tmp_path / "vit.json"
    config.write_text(json.dumps(VIT))
    table = tmp_path / "sizes.csv"
    done = run(f"hf:{config}", "--vary", "batch=1,2", "--format", "json", "-o", str(table), "-o", f"{table}.md")
    assert [row["sizes"] for row in json.loads(done.stdout)["rows"]] == [{"batch": 1}, {"batch": 2}]
    assert len(table.read_text().splitlines()) == 3
    assert Path(f"{table}.md").exists(), "each --output is written"
    for options in (("--context", "64"), ("--vary", "context=64")):
        refused = run(f"hf:{config}", *options)
        assert (refused.exit_code, "context" in refused.stderr) == (2, True)


def test_the_first_line_says_what_its_times_lack() -> None:
    whole, lacking = step(0.5), replace(step(0.5), unpredicted_calls=2)
    lines = [headline(SizedSteps(source="a.py:make", rows=(whole, other), notes=())) for other in (whole, lacking)]
    assert ["2 calls" in line for line in lines] == [False, True]


LIMITED = """
import torch


def make(rows=16):
    if rows > 100:
        raise ValueError(f"{rows} rows are too many")
    return torch.nn.Linear(8, 8), (torch.zeros(rows, 8),)
"""


def test_a_size_that_cannot_be_captured_costs_its_rows_alone(tmp_path: Path) -> None:
    (tmp_path / "limited.py").write_text(LIMITED)
    target, devices = f"{tmp_path / 'limited.py'}:make", [load_device("910b3")]
    found = vary_file(target, {}, sizes_of(["rows=8,1000,16"]), devices, lambda plan: plan)
    assert [row.sizes["rows"] for row in found.rows] == [8, 16]
    assert found.notes[0].startswith("not predicted: rows 1,000, because ")
    assert "1000 rows are too many" in found.notes[0]
    with pytest.raises(OpReplayError, match="1000 rows are too many"):
        vary_file(target, {}, sizes_of(["rows=1000"]), devices, lambda plan: plan)
