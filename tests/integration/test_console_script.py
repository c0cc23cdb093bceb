"""The installed command from the outside: exit codes, streams, files, pipes, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

from opreplay.replay.results.reading import read_results
from opreplay.traces.samples import sample_path
from tests.forked_children import opreplay_here

SCRIPT = Path(sys.executable).parent / "opreplay"
SAMPLE = sample_path("transformer_infer")
QUICK = ["--set", "op_time=10ms", "--set", "max_op_memory=1GB"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SCRIPT.exists(), reason="opreplay is not installed beside this Python"),
]


def opreplay(*args: object, stdin: bytes | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [SCRIPT, *map(str, args)],
        input=stdin,
        capture_output=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "80", **env},
    )
    text = done.stdout.decode(), done.stderr.decode()
    assert "Traceback" not in text[1], text[1]
    return subprocess.CompletedProcess(done.args, done.returncode, *text)


def test_inspect_prints_the_promised_fields_without_torch_or_pandas() -> None:
    code = (
        "import sys\n"
        "from opreplay.cli.main import opreplay\n"
        f"opreplay(['inspect', {str(SAMPLE)!r}, '--format', 'json'], standalone_mode=False)\n"
        "assert not {'torch', 'pandas'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    promised = {"events", "cpu_ops", "kernels", "unique_ops", "owner_ops", "device_time_us", "bytes_read"}
    assert promised <= set(facts)
    assert facts["cpu_ops"] > facts["unique_ops"] > 0


def test_a_run_reports_coverage_first_and_writes_every_format(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("r.jsonl", "r.csv", "r.md")]
    done = opreplay(
        "run",
        SAMPLE,
        "--top",
        3,
        *QUICK,
        "--soc",
        "910b3",
        "--soc",
        "910b2",
        "--set",
        "threads=1",
        "--set",
        f"seed={7}",
        *(part for file in files for part in ("--output", file)),
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "replayed 3 of 3 ops = " in "\n".join(lines)
    assert max(map(len, lines[5:])) <= 80
    assert "3/3 ops in" in done.stderr
    header, results, summary = read_results(files[0])
    assert header.options["seed"] == 7
    assert header.options["threads"] == 1
    assert header.options["max_op_bytes"] == 10**9
    assert header.trace["source"] == SAMPLE.name
    assert str(SAMPLE.parent) not in files[0].read_text()
    assert summary is not None
    assert (summary.ops, summary.replayed, len(results)) == (3, 3, 3)
    for result in results:
        assert result.measured_us
        assert list(result.simulated_us) == ["910b3", "910b2"]
    assert len(files[1].read_text().splitlines()) == 4
    assert "replayed 3 of 3 ops = " in files[2].read_text()
    again = opreplay("run", SAMPLE, "--output", files[0])
    assert again.returncode == 2
    assert "--force" in again.stderr


def test_stdin_and_stdout_make_a_pipe() -> None:
    done = opreplay(
        "run",
        "-",
        "--include",
        "aten::add*",
        "--exclude",
        "aten::addmm",
        "--top",
        2,
        *QUICK,
        "-o",
        "-",
        stdin=SAMPLE.read_bytes(),
    )
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [records[0]["record"], records[-1]["record"]] == ["header", "summary"]
    assert {r["name"] for r in records[1:-1]} <= {"aten::add", "aten::add_"}
    assert "replayed " in done.stderr


def test_a_missing_device_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    done = opreplay_here("run", SAMPLE, "--device", "cuda:97", "--top", 1, "--output", tmp_path / "r.jsonl")
    assert done.returncode == 4
    assert done.stdout == ""
    assert "hint: " in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "content"),
    [
        ("inspect", b""),
        ("inspect", b"\x89PNG\r\n\x1a\n\0\0"),
        ("inspect", b"[1, 2, 3]"),
        ("plan", b'{"a": 1}'),
        ("run", b"\x1f\x8b\x08broken"),
        ("inspect", b'{"traceEvents": 7}'),
    ],
)
def test_what_is_no_trace_is_refused(command: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    done = opreplay_here(command, path)
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.startswith("opreplay: ")


def test_usage_errors_exit_with_2(tmp_path: Path) -> None:
    for args in (
        ["run", SAMPLE, "--soc", "h100"],
        ["run", SAMPLE, "--soc", "910b3", "--soc", "Ascend910B3"],
        ["run", SAMPLE, "-o", tmp_path / "r.xlsx"],
        ["inspect", SAMPLE, "--set", "limit=colour=3"],
        ["inspect", str(SAMPLE.parent / "*.json.gz")],
    ):
        done = opreplay_here(*args)
        assert done.returncode == 2, (args, done.stderr)


def test_a_limit_is_enforced_and_named() -> None:
    done = opreplay_here("inspect", SAMPLE, "--set", "limit=events=10")
    assert done.returncode == 3
    assert "--set limit=events=N" in done.stderr


def test_plans_are_saved_and_explained(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    done = opreplay_here("plan", SAMPLE, "--select", "leaf", "--output", path, "--explain", "aten::m*", COLUMNS="120")
    assert done.returncode == 0, done.stderr
    assert "Arguments" in done.stdout
    assert "910b3" in done.stdout
    plan = json.loads(path.read_text())
    assert plan["schema_version"] >= 1
    assert plan["selection"] == "leaf"


@pytest.mark.parametrize("name", ["cnn_train", "moe_block"])
def test_every_op_of_a_sample_fits_on_meta_tensors(name: str) -> None:
    done = opreplay_here("plan", sample_path(name), "--meta", "--format", "json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["meta"]["counts"]["ok"] >= 0.9 * facts["replayable"]
    assert facts["meta"]["counts"]["differs"] == facts["meta"]["counts"]["failed"] == 0
    assert facts["meta"]["not_called"] == facts["ops"] - facts["replayable"]
    assert all(op["meta"] is None for op in facts["unique_ops"] if not op["replayable"])
    for total in facts["not_replayed"]:
        assert total["ops"] == facts["reasons"][total["kind"]]


def test_plan_counts_what_would_not_be_replayed_or_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert (
        opreplay_here("plan", SAMPLE, "--top", 4, "--output", path, "--max-failed", 0, "--explain", "*").returncode == 0
    )
    plan = json.loads(path.read_text())
    sizes = next(arg["tensors"][0] for arg in plan["ops"][0]["args"] if arg.get("tensors"))
    sizes["shape"] = [3 * n + 1 for n in sizes["shape"]]
    sizes.pop("strides", None)
    path.write_text(json.dumps(plan))
    done = opreplay_here("plan", path, "--meta", "--max-failed", 0)
    assert done.returncode == 1, done.stderr
    assert "on meta tensors: 3 ok, 1 failed" in done.stdout
    assert "--max-failed allows 0" in done.stderr


def test_a_reader_that_leaves_is_no_error() -> None:
    with subprocess.Popen(
        [SCRIPT, "inspect", SAMPLE, "--format", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_no_color_and_dumb_terminals_get_no_escapes() -> None:
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}, {"PYTHONIOENCODING": "ascii"}):
        done = opreplay("inspect", SAMPLE, **env)
        assert done.returncode == 0
        assert "\x1b" not in done.stdout


def test_an_interrupt_keeps_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with subprocess.Popen(
        [SCRIPT, "run", SAMPLE, "--set", "op_time=300ms", "--output", path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        deadline = monotonic() + 60
        while monotonic() < deadline and not (path.exists() and path.read_bytes().count(b"\n") >= 2):
            sleep(0.05)
        # As a terminal does it: the whole process group.
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "interrupted" in out.splitlines()[0]
    _, results, summary = read_results(path)
    assert summary is not None
    assert summary.interrupted
    assert len(results) >= 1
