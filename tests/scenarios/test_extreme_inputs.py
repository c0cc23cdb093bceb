"""Values that no file of ours holds, in every kind of input: the console refuses them or goes on, and never breaks."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opreplay.cli.exit_codes import ExitCode
from opreplay.cli.main import UNBEARABLE, opreplay
from opreplay.replay.ascend.devices.text import shipped_text
from opreplay.replay.ir.extremes import extreme
from opreplay.traces.samples import catalog

pytestmark = pytest.mark.slow

NUMBERS = ("1" + 400 * "0", "-1" + 400 * "0", "1e308", "-1e308", "5e-324", str(2**63), str(-(2**63) - 1), "-1")
NUMBERS += ("0", "null")
DEEP = ("[" * 200_000, "[" * 200_000 + "]" * 200_000, '{"a":' * 100_000)
MARK = '"@@"'
CHANGES = 24
"""Changed files a kind: some seconds of each."""


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values in some JSON but texts, which are for other tests."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in list(items):
            yield from leaves(each, (*path, key))
    if not isinstance(value, str):
        yield path


def changed(document: Any, path: tuple[Any, ...], text: str) -> str:
    """The JSON with `text` at a path."""
    if not path:
        return text
    copy = json.loads(json.dumps(document))
    inside = copy
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = "@@"
    return json.dumps(copy).replace(MARK, text)


def is_refused_or_done(*arguments: object) -> int:
    """The exit code, which must be one of those documented; nothing may be raised past the console."""
    done = CliRunner(env={"COLUMNS": "80"}).invoke(opreplay, [str(argument) for argument in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), (arguments, done.exception)
    assert done.exit_code in set(ExitCode) - {ExitCode.INTERNAL}, (arguments, done.exit_code)
    assert (done.exit_code == 0) or "error" in done.stderr.lower() or "opreplay: " in done.stderr, done.stderr
    return done.exit_code


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A plan and results of a bundled trace."""
    folder = tmp_path_factory.mktemp("sound")
    plan, results = folder / "plan.json", folder / "results.jsonl"
    trace = str(catalog.sample_path("transformer_infer"))
    for arguments in (
        ("plan", trace, "--top", "3", "-o", str(plan)),
        ("run", trace, "--top", "3", "--set", "op_time=1ms", "--set", "visits=1", "--soc", "910b3", "-o", str(results)),
    ):
        assert CliRunner().invoke(opreplay, arguments).exit_code == 0
    return {"plan": plan, "results": results}


def test_a_plan_with_any_number_anywhere(files: dict[str, Path], tmp_path: Path) -> None:
    document = json.loads(files["plan"].read_text())
    rng, paths, path = random.Random(0), list(leaves(document)), tmp_path / "plan.json"
    for _ in range(CHANGES):
        path.write_text(changed(document, rng.choice(paths), rng.choice((*NUMBERS, *DEEP[:2]))))
        is_refused_or_done("plan", path)
        is_refused_or_done("simulate", path, "--soc", "910b3")


def test_results_with_any_number_anywhere(files: dict[str, Path], tmp_path: Path) -> None:
    lines = files["results"].read_text().splitlines()
    rng, path = random.Random(1), tmp_path / "results.jsonl"
    for _ in range(CHANGES):
        at = rng.randrange(len(lines))
        document = json.loads(lines[at])
        line = changed(document, rng.choice(list(leaves(document))), rng.choice((*NUMBERS, *DEEP)))
        path.write_text("\n".join([*lines[:at], line, *lines[at + 1 :]]) + "\n")
        is_refused_or_done("show", path)
        is_refused_or_done("compare", path, files["results"])


def test_device_files_and_options_with_any_value_anywhere(tmp_path: Path) -> None:
    shipped = shipped_text("910b3")
    values = [line for line in shipped.splitlines() if "=" in line]
    rng, device, options = random.Random(2), tmp_path / "device.toml", tmp_path / "options.toml"
    toml = [one for one in (*NUMBERS, "inf", "nan", "[" * 100_000) if one != "null"]
    trace = catalog.sample_path("transformer_infer")
    for _ in range(CHANGES):
        line, value = rng.choice(values), rng.choice(toml)
        key, _, before = line.partition("=")
        # A quantity is a table on one line: its value, else the whole line.
        text = before.replace(before.split("value =")[-1].split(",")[0], f" {value}") if "value =" in before else value
        device.write_text(shipped.replace(line, f"{key}= {text}"))
        is_refused_or_done("list", "devices", device)
        is_refused_or_done("simulate", trace, "--top", "2", "--soc", device)
        is_refused_or_done("timeline", trace, "--soc", device)
        options.write_text(f"[plan]\n{rng.choice(['top', 'visits', 'min-share', 'op-time'])} = {value}\n")
        is_refused_or_done("--config", options, "plan", trace)


HEAD = "Name,Type,Accelerator Core,Start Time(us),Duration(us),Block Dim,Input Shapes,Input Data Types,Input Formats,"
HEAD += "Output Shapes,Output Data Types,Output Formats\n"


def test_kernel_tables_with_any_number_anywhere(tmp_path: Path) -> None:
    row = ["k", "MatMulV2", "AI_CORE", "1.0", "10.0", "20", '"64,64;64,64"', "FLOAT16;FLOAT16", "ND;ND", '"64,64"']
    row += ["FLOAT16", "ND"]
    rng, path = random.Random(3), tmp_path / "kernel_details.csv"
    assert (
        is_refused_or_done(*(("validate", path, "--soc", "910b3") if path.write_text(HEAD + ",".join(row)) else ()))
        == 0
    )
    for _ in range(CHANGES):
        at, number = rng.choice((3, 4, 5, 6, 9)), rng.choice((*NUMBERS, "inf", "nan"))
        cell = f'"{number},64;64,{number}"' if at in (6, 9) else number
        path.write_text(HEAD + ",".join([*row[:at], cell, *row[at + 1 :]]) + "\n")
        is_refused_or_done("validate", path, "--soc", "910b3")


@pytest.mark.parametrize("error", UNBEARABLE)
def test_what_no_reader_refused_is_a_refusal(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, Path], error: type[Exception]
) -> None:
    def raises(*_: object, **__: object) -> None:
        raise error("too much")

    monkeypatch.setattr("opreplay.replay.ir.plan_file.parse_plan", raises)
    assert is_refused_or_done("plan", files["plan"]) == ExitCode.REFUSED


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ('{"count": 1' + 400 * "0" + "}", "$.count"),
        ('{"a": [{"simulated_us": {"910b3": 1e308}}]}', "$.a[0].simulated_us.910b3"),
        ('{"value": 3.4028234663852886e38, "seed": 18446744073709551615}', ""),
        ('{"time_us": 12.5, "share": 1e-30}', ""),
    ],
)
def test_extremes_are_where_they_are(line: str, where: str) -> None:
    assert extreme(line.encode()) == where


@pytest.mark.skipif(sys.platform == "win32", reason="closes a descriptor as a shell does")
@pytest.mark.parametrize(("closed", "code"), [((1,), ExitCode.ENVIRONMENT), ((2,), ExitCode.OK), ((0,), ExitCode.OK)])
def test_closed_streams(closed: tuple[int, ...], code: ExitCode) -> None:
    def close() -> None:
        for descriptor in closed:
            os.close(descriptor)

    command = [sys.executable, "-c", "from opreplay.cli.main import main; main()", "list", "devices"]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    done = subprocess.run(command, preexec_fn=close, check=False, **streams)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert ("stdout" in done.stderr) == (closed == (1,))
