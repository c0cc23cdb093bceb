"""`opreplay doctor`, with and without what it looks for."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.replay.host import doctor


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(opreplay, ["doctor", *args], env={"COLUMNS": "80"})
    return result.exit_code, result.stdout


@pytest.mark.slow
def test_this_machine_is_fit() -> None:
    code, text = run()
    assert code == 0
    assert "torch" in text
    assert "threads" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.slow
def test_json_has_the_same_checks() -> None:
    code, text = run("--format", "json")
    sections = json.loads(text)
    assert code == 0
    assert [check["name"] for check in sections["required"]] == ["python", "torch"]
    assert sections["devices"][0]["name"] == "cpu"
    assert {check["name"] for check in sections["libraries"]} == {"trace reader", *doctor.OPTIONAL, *doctor.VENDOR}


@pytest.mark.slow
def test_says_whether_the_trace_reader_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "compiled_scanner", lambda: None)
    assert "Python only" in run()[1]
    monkeypatch.setattr(doctor, "compiled_scanner", lambda: object)
    assert "compiled" in run()[1]


def test_a_missing_torch_exits_with_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    code, text = run()
    assert code == 4
    assert "pip install 'torch>=2.4'" in " ".join(text.split())


@pytest.mark.slow
def test_an_old_torch_exits_with_4(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch, "__version__", "2.3.1+cpu")
    code, text = run()
    assert code == 4
    assert "too old" in text


@pytest.mark.slow
def test_libraries_are_found_without_importing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "VENDOR", ("this", "antigravity"))
    for module in doctor.VENDOR:
        monkeypatch.delitem(sys.modules, module, raising=False)
    found = {check.name: check.found for check in doctor.check_libraries()}
    assert found["this"] == "installed"
    assert "this" not in sys.modules


@pytest.mark.parametrize(("text", "version"), [("2.13.0+cpu", (2, 13)), ("2.4.0a0", (2, 4)), ("nightly", ())])
def test_versions(text: str, version: tuple[int, ...]) -> None:
    assert doctor.version_tuple(text) == version
