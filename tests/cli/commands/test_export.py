"""`opreplay export`: the files, what is said of them, filters, plans in, names, refusals."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay

COLUMNS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")


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
    assert result.stdout.splitlines()[0] == f"exported 2 of 3 ops to {out}; 1 left out"
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
    assert export(trace, "--output", first, "--op-filter", "aten::*", "--top", 1).exit_code == 0
    with zipfile.ZipFile(first) as archive:
        text = archive.read("a/ops.json")
    plan = tmp_path / "ops.json"
    plan.write_bytes(text)
    assert [one["name"] for one in json.loads(text)["ops"]] == ["aten::relu"]
    result = export(plan, "--output", second, "--device", "cpu", "--max-op-memory", "1MB")
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

    for flag in ("--init-module", "--plugin"):
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
