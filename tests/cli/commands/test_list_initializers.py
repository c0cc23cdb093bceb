"""`opreplay list initializers`, and how initializers are given to `run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.initializers.extensions import clear_registrations
from opreplay.replay.ops.inputs import built_in

MODULE = '''
from opreplay.initializers.base import CustomInit, InitReport
from opreplay.initializers.extensions import register_initializer

@register_initializer
class Ours(CustomInit):
    """Fills what ours needs."""
    name = "ours"
    op_patterns = ("mylib::op",)
    def initialize(self, context):
        return InitReport()
'''


@pytest.fixture
def module(tmp_path: Path):
    file = tmp_path / "ours.py"
    file.write_text(MODULE)
    yield file
    clear_registrations()


def test_all_are_listed_with_ops_and_options(module: Path) -> None:
    args = ["list", "initializers", "--plugin", str(module), "--format", "json"]
    listed = {rule["name"]: rule for rule in json.loads(CliRunner().invoke(opreplay, args).stdout)}
    assert set(listed) == {rule.name for rule in built_in()} | {"ours"}
    assert listed["ours"]["ops"] == ["mylib::op"]
    options = "distribution exponent histogram experts intermediate top_k dtype"
    assert [o["name"] for o in listed["moe_routing"]["options"]] == options.split()
    table = CliRunner().invoke(opreplay, ["list", "initializers"], env={"COLUMNS": "120"}).stdout
    assert "paged_attention" in table
    assert "uniform|zipf|histogram" in table


def test_a_long_list_of_ops_wraps_in_a_pipe() -> None:
    done = CliRunner().invoke(opreplay, ["list", "initializers"], env={"COLUMNS": None})
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) < 400
    found = json.loads(CliRunner().invoke(opreplay, ["list", "initializers", "--format", "json"]).stdout)
    shown = done.stdout.replace(",", " ").split()
    assert {op for rule in found for op in rule["ops"]} <= set(shown), "no name is cut"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--set", "init_arg=moe_routing.distribution=gauss"], "uniform, zipf, histogram"),
        (["--set", "init_arg=nobody.x=1"], "unknown initializer"),
        (["--plugin", "missing.py"], "missing.py failed"),
    ],
)
def test_wrong_settings_stop_a_run_before_the_trace_is_read(args: list[str], said: str) -> None:
    result = CliRunner().invoke(opreplay, ["run", "no_such_trace.json", *args])
    assert result.exit_code == 2
    assert said in result.stderr
