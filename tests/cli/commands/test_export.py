"""`opreplay export`: the files, what is said of them, filters, plans in, names, refusals."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.traces import read_trace
from opreplay.traces.samples import sample_path

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_children")]

PLUGIN = """
import torch

from opreplay import CustomInit, InitReport, register_executor, register_initializer
from opreplay.replay.ascend.custom import register_op_estimator
from opreplay.torch_ir import register_executor as of_torch_ir


@of_torch_ir("export_test.gate")
def gate(inputs, attrs):
    return [torch.sigmoid(inputs[0]) * attrs.get("slope", 1.0)]


@register_executor("export_test::scale")
def scale(x):
    return x.reshape(2, 8) * 2


@register_initializer
class Ones(CustomInit):
    name = "export_test_ones"
    op_patterns = ("export_test::scale",)

    def initialize(self, context):
        for _, tensor in context.tensors():
            tensor.fill_(1.0)
        return InitReport(summary="ones")


@register_op_estimator("export_test::gate", None, True)
def time_of(info, device):
    return 1e-6
"""
COLUMNS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")


def replayed(bundle: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-W", "ignore", str(bundle / "replay.py"), "--json", "--iterations", "2"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def op(name: str, ts: int, dur: int) -> dict[str, object]:
    args = dict(zip(COLUMNS, ([[4, 4]], ["float"], [[4, 1]], [""]), strict=True))
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "my_model.json"
    names = ("aten::relu", "aten::exp", "acme::secret")
    path.write_text(json.dumps({"traceEvents": [op(name, 100 * i, 50 - i) for i, name in enumerate(names)]}))
    return path


def export(*args: object) -> Result:
    return CliRunner().invoke(opreplay, ["export", *map(str, args)], env={"COLUMNS": "100"})


def test_a_folder_with_three_files_and_a_list_of_what_was_left_out(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    result = export(trace, "-o", out)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[0] == f"exported 2 of 3 ops to {out} (1 left out)"
    assert "* 1 × acme::secret: policy: namespace acme" in result.stdout
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "ops.json", "replay.py"]
    together = "".join(path.read_text() for path in out.iterdir())
    assert "acme" not in together
    assert "my_model" not in together
    assert export(trace, "-o", out).exit_code == 2
    assert export(trace, "-o", out, "--force", "--keep-names").exit_code == 0
    assert "my_model" in (out / "ops.json").read_text()
    assert "acme::secret" in (out / "README.md").read_text()


def test_filters_and_plans_as_in_run(trace: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.zip", tmp_path / "b"
    assert export(trace, "--output", first, "--include", "aten::*", "--top", 1).exit_code == 0
    with zipfile.ZipFile(first) as archive:
        text = archive.read("a/ops.json")
    plan = tmp_path / "ops.json"
    plan.write_bytes(text)
    assert [one["name"] for one in json.loads(text)["ops"]] == ["aten::relu"]
    result = export(plan, "--output", second, "--device", "cpu", "--set", "max_op_memory=1MB")
    assert result.exit_code == 0, result.stderr
    assert json.loads((second / "ops.json").read_text())["ops"] == json.loads(text)["ops"]


def test_initializers_and_plugins_have_their_say(trace: Path, tmp_path: Path) -> None:
    code = tmp_path / "mine.py"
    code.write_text(
        "from opreplay.initializers.base import CustomInit, InitReport\n"
        "from opreplay.initializers.extensions import register_initializer\n"
        "@register_initializer\n"
        "class Threes(CustomInit):\n"
        "    name, op_patterns = 'threes', ('aten::relu',)\n"
        "    def initialize(self, context):\n"
        "        context.need('self').fill_(3)\n"
        "        return InitReport()\n"
    )
    from opreplay.initializers.extensions import clear_registrations

    for flag in ("--plugin", "--init-module"):
        try:
            assert export(trace, "--output", tmp_path / flag.strip("-"), flag, code).exit_code == 0
        finally:
            clear_registrations()
        made = json.loads((tmp_path / flag.strip("-") / "ops.json").read_text())
        assert [{"fill": "uniform", "low": 3.0, "high": 3.0}] in [
            one.get("self") for one in made["bundle"]["inputs"].values()
        ]
    assert export(trace, "--output", tmp_path / "c", "--init-arg", "no_such.option=1").exit_code == 2


def test_what_cannot_be_written_is_a_usage_error(trace: Path, tmp_path: Path) -> None:
    assert export(trace).exit_code == 2
    assert export(trace, "-o", trace).exit_code == 2
    assert export(trace, "-o", tmp_path / "no" / "such").exit_code == 2


def test_a_folder_of_definitions_is_read_as_a_plan(trace: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "fi", tmp_path / "results.jsonl"
    result = export(trace, "--format", "flashinfer-trace", "-o", out)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[0] == f"exported 2 of 3 ops to {out}: 2 definitions"
    assert "* 1 × acme::secret: policy: namespace acme" in result.stdout
    assert export(trace, "--format", "flashinfer-trace", "-o", out).exit_code == 2, "it is not empty"
    assert export(trace, "--format", "flashinfer-trace", "-o", tmp_path / "a.zip").exit_code == 2
    plan = tmp_path / "plan.json"
    said = CliRunner().invoke(opreplay, ["plan", str(out), "--output", str(plan)])
    assert said.exit_code == 0, said.stderr
    assert [op["name"] for op in json.loads(plan.read_text())["ops"]] == ["aten::exp", "aten::relu"]
    assert CliRunner().invoke(opreplay, ["simulate", str(out), "--soc", "910b3"]).exit_code == 0
    ran = CliRunner().invoke(opreplay, ["run", str(out), "--device", "cpu", "--output", str(page)])
    assert ran.exit_code == 0, ran.stderr
    assert len(page.read_text().splitlines()) >= 3


def test_files_for_other_tools(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "ops.json"
    result = export(trace, "--format", "tritonbench", "-o", out)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [f"exported 2 of 3 ops to {out} (1 left out)", "* 1 × policy"]
    assert json.loads(out.read_text())["aten.relu.default"] == {"((T([4, 4], f32),), {})": 1}
    assert export(trace, "--format", "tritonbench", "-o", out).exit_code == 2, "it exists"
    lines = tmp_path / "ops.txt"
    assert export(trace, "--format", "tritonbench", "-o", lines).exit_code == 0
    assert lines.read_text().startswith("Operator: aten.relu.default\ncnt: 1, ((T(")
    lens = tmp_path / "ir.json"
    assert export(trace, "--format", "tracelens", "-o", lens).exit_code == 0
    assert [one["op_name"] for one in json.loads(lens.read_text())] == ["aten::relu", "aten::exp"]


def test_an_op_trace_is_read_back(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "ops.txt"
    done = export(trace, "--format", "backendbench", "-o", out)
    assert done.exit_code == 0, done.stderr
    left_out = int(done.stdout.split(" (")[1].split()[0])
    assert sum(int(line.split()[3]) for line in done.stderr.splitlines() if line.startswith("* left out:")) == left_out
    planned = CliRunner().invoke(opreplay, ["plan", str(out), "--format", "json"])
    assert planned.exit_code == 0, planned.stderr
    assert export(out, "--format", "backendbench", "-o", tmp_path / "again.txt").exit_code == 0
    assert (tmp_path / "again.txt").read_bytes() == out.read_bytes()


def test_a_step_for_astra_sim(trace: Path, tmp_path: Path) -> None:
    out, fast = tmp_path / "step.0.et", tmp_path / "fast.0.et"
    result = export(trace, "--format", "chakra", "-o", out)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[0] == f"exported 3 calls and 0 collectives to {out}: 3 nodes, recorded times"
    assert CliRunner().invoke(opreplay, ["inspect", str(out)]).exit_code == 0
    result = export(trace, "--format", "chakra", "-o", fast, "--clock", "910b3")
    assert "910b3 times" in result.stdout
    assert read_trace(fast).ops.dur_ns.sum() < read_trace(out).ops.dur_ns.sum()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--format", "chakra", "-o", "step.json"), "has no suffix of --format chakra"),
        (("--format", "tritonbench", "-o", "ops.json", "--clock", "910b3"), "--clock has no effect"),
        (("--format", "tracelens", "-o", "ops.json", "--keep-names"), "--keep-names has no effect"),
        (("-o", "b", "--capture", "nowhere"), "nowhere"),
        (("-o", "b", "--kernel-details", "nowhere.csv"), "kernel tables are only for traces"),
    ],
)
def test_what_goes_with_no_format_is_refused(trace: Path, arguments: tuple[str, ...], why: str) -> None:
    result = export(trace, *arguments)
    assert result.exit_code in (2, 3)
    assert why in result.stderr


TILED = """
from opreplay import tile


@tile.kernel("export_test::double")
def double(x, y: tile.Out):
    for r in tile.blocks(x.shape[0], 4):
        tile.store(y[r], tile.load(x[r]) * 2.0)


"""


DEFINES = """
import torch


@torch.library.custom_op("export_defined::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


library = torch.library.Library("export_library", "DEF")
library.define("thrice(Tensor x) -> Tensor")
library.impl("thrice", lambda x: x * 3, "CPU")
torch.library.define("export_function::negated", "(Tensor x) -> Tensor")
torch.library.impl("export_function::negated", "CPU", torch.neg)
"""


OWN = ("export_defined::twice", "export_library::thrice", "export_function::negated", "aten::relu")


def test_ops_that_a_plugin_defines_are_in_with_its_file(tmp_path: Path) -> None:
    plugin, path, out = tmp_path / "defines.py", tmp_path / "t.json", tmp_path / "bundle"
    plugin.write_text(DEFINES)
    path.write_text(json.dumps({"traceEvents": [op(name, 100 + 20 * at, 9) for at, name in enumerate(OWN)]}))
    result = export(path, "-o", out, "--plugin", plugin, "--with-plugins")
    assert result.exit_code == 0, result.stderr
    assert "exported 4 of 4" in result.stdout
    assert (out / "plugins" / "defines.py").read_text() == DEFINES
    assert "`plugins/defines.py`" in (out / "README.md").read_text()
    done = replayed(out)
    assert done.returncode == 0, done.stderr + done.stdout
    assert {one["name"] for one in json.loads(done.stdout)["results"]} == set(OWN)


def test_tile_programs_are_left_out_and_disturb_nobody(tmp_path: Path) -> None:
    """A bundle has no opreplay to run them; what else the file registers is in."""
    plugin, path, out = tmp_path / "tiled.py", tmp_path / "t.json", tmp_path / "bundle"
    plugin.write_text(TILED + PLUGIN)
    path.write_text(json.dumps({"traceEvents": [op("export_test::double", 100, 9), op("export_test::scale", 200, 9)]}))
    result = export(path, "-o", out, "--plugin", plugin, "--with-plugins")
    assert result.exit_code == 0, result.stderr
    assert "runs through a tile program, which needs opreplay" in result.stdout
    done = replayed(out)
    assert done.returncode == 0, done.stderr + done.stdout
    assert [one["name"] for one in json.loads(done.stdout)["results"]] == ["export_test::scale"]


def test_ops_with_the_plugin_that_runs_them(tmp_path: Path) -> None:
    plugin = tmp_path / "own_ops.py"
    plugin.write_text(PLUGIN)
    path = tmp_path / "t.json"
    events = [op("export_test::gate", 100, 9), op("export_test::scale", 200, 9), op("aten::relu", 300, 9)]
    path.write_text(json.dumps({"traceEvents": events}))
    without, whole = tmp_path / "without", tmp_path / "with"
    result = export(path, "-o", without, "--plugin", plugin)
    assert result.stdout.count("runs through an executor of a plugin (--with-plugins)") == 2
    result = export(path, "-o", whole, "--plugin", plugin, "--with-plugins")
    assert result.exit_code == 0, result.stderr
    assert (whole / "plugins" / "own_ops.py").read_text() == PLUGIN
    assert "`plugins/own_ops.py`" in (whole / "README.md").read_text()
    done = replayed(whole)
    assert done.returncode == 0, done.stderr + done.stdout
    results = {one["name"]: one for one in json.loads(done.stdout)["results"]}
    assert {one["status"] for one in results.values()} == {"replayed"}
    assert results["export_test::gate"]["outputs"] == [[4, 4]]
    assert results["export_test::scale"]["outputs"] == [[2, 8]]
    (whole / "plugins" / "own_ops.py").write_text("")
    done = replayed(whole)
    assert done.returncode == 1
    assert "no plugin of this bundle contains the function" in done.stdout


def test_a_script_that_measures_says_what_its_calls_are_worth(tmp_path: Path) -> None:
    out = tmp_path / "measure.py"
    trace = str(sample_path("transformer_infer"))
    result = export(trace, "--format", "measure", "--soc", "910b3", "--budget", "1min", "-o", str(out))
    assert result.exit_code == 0, result.stderr
    assert "of the variance of the predicted total" in result.stdout
    compile(out.read_text(), str(out), "exec")
    short = export(trace, "--format", "measure", "--soc", "910b3", "--budget", "1ms", "-o", str(out), "--force")
    assert (short.exit_code, "1.5 s" in short.stderr) == (2, True)
    few = export(trace, "--format", "measure", "--soc", "910b3", "--budget", "4s", "-o", str(out), "--force")
    assert int(few.stdout.split()[1]) < int(result.stdout.split()[1])


def test_a_script_that_measures_is_of_one_device_and_a_file(tmp_path: Path) -> None:
    trace = str(sample_path("transformer_infer"))
    none = export(trace, "--format", "measure", "-o", str(tmp_path / "m.py"))
    two = export(trace, "--format", "measure", "--soc", "910b3", "--soc", "910b4", "-o", str(tmp_path / "m.py"))
    assert "Give --soc once" in none.stderr
    assert "Give --soc once" in two.stderr
    assert ".py" in export(trace, "--format", "measure", "--soc", "910b3", "-o", str(tmp_path / "m.txt")).stderr
    for option in (["--soc", "910b3"], ["--budget", "1min"], ["--fused", "ascend"]):
        wrong = export(trace, *option, "-o", str(tmp_path / "bundle"))
        assert f"{option[0]} has no effect with --format bundle" in wrong.stderr
