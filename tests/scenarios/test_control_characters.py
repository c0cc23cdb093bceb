"""One hostile trace through every command and format: nothing that a terminal or browser would act on comes out raw.

Ops, kernels, annotations, ranks, devices, streams and metadata of the trace carry escape sequences, C1 controls,
bidirectional marks, line ends and zero-width characters. Outputs may hold line feeds and tabs, and no other character
below a space, no C1 control, no bidirectional or zero-width character.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay

EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J\x9d8;;http://x\x9c\u202egnp\u2066\u200b\r\n\x00\x7f\ufeff\u2028end"
ACTED_ON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
RAN: list[tuple[int, tuple[str, ...]]] = []
"""Exit code and arguments of each command."""
BINARY = (".et", ".gz", ".safetensors", ".sqlite", ".pftrace", ".parquet")


def hostile_trace(rank: int = 0, slower: float = 1.0) -> dict[str, Any]:
    """A step of ten ops on a GPU: products that can be replayed, and ops of hostile names."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": EVIL}},
        {"ph": "M", "name": "process_labels", "pid": 1, "tid": 0, "args": {"labels": EVIL}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 1, "args": {"name": EVIL}},
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 0, "tid": 1, "ts": 0.0, "dur": 5000.0},
        {"ph": "X", "cat": "user_annotation", "name": f"forward {EVIL}", "pid": 0, "tid": 1, "ts": 1.0, "dur": 4000.0},
        {"ph": "X", "cat": "python_function", "name": f"nn.Module: {EVIL}_0", "pid": 0, "tid": 1, "ts": 2, "dur": 3990},
        {"ph": "i", "s": "g", "name": f"mark {EVIL}", "pid": 0, "tid": 1, "ts": 3.0},
    ]
    names = ["aten::mm", f"aten::{EVIL}", f"{EVIL}::op", f"label {EVIL}", "aten::relu", f"vllm::{EVIL}", "aten::mm"]
    names += [f"nccl:{EVIL}", "record_param_comms", f"aten::add.{EVIL}"]
    for index, name in enumerate(names):
        start, shape = 10.0 + 300.0 * index, [64, 64] if index < 6 else [32, 32]
        args: dict[str, Any] = {
            "External id": index + 1,
            "Input Dims": [shape, shape],
            "Input type": ["float", "float"] if index % 3 else ["float", EVIL if index == 3 else "float"],
            "Concrete Inputs": ["", EVIL if index % 2 else ""],
            "Collective name": EVIL,
            "Process Group Name": EVIL,
            "Process Group Ranks": EVIL,
            "In msg nelems": 16,
            "dtype": EVIL,
        }
        events.append(
            {"ph": "X", "cat": "cpu_op", "name": name, "pid": 0, "tid": 1, "ts": start, "dur": 200.0, "args": args}
        )
        events.append(
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": f"cudaLaunchKernel{EVIL if index == 2 else ''}",
                "pid": 0,
                "tid": 1,
                "ts": start + 20,
                "dur": 5.0,
                "args": {"correlation": index + 1, "External id": index + 1},
            }
        )
        kernel = {"correlation": index + 1, "External id": index + 1, "device": 0, "stream": EVIL if index == 4 else 7}
        kernel |= {"grid": [1, 1, 1], "block": [EVIL], "Collective name": EVIL, "Process Group Name": EVIL}
        events.append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": f"ncclDevKernel_{EVIL}" if index > 6 else f"gemm_{EVIL}",
                "pid": 0,
                "tid": 7,
                "ts": start + 60,
                "dur": 100.0 * slower,
                "args": kernel,
            }
        )
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": EVIL, "totalGlobalMem": 1 << 30, EVIL: 1}],
        "distributedInfo": {
            "backend": EVIL,
            "rank": rank,
            "world_size": 2,
            "pg_config": [{"pg_desc": EVIL, "pg_name": EVIL}],
        },
        "cuda_runtime_version": EVIL,
        "trace_id": EVIL,
        "pytorch_version": EVIL,
        EVIL: EVIL,
        "traceEvents": events,
        "traceName": EVIL,
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "a.json").write_text(json.dumps(hostile_trace()))
    (tmp_path / "b.json").write_text(json.dumps(hostile_trace(1, slower=3.0)))
    (tmp_path / "device.toml").write_text(
        'schema_version = 1\nname = "own"\ntitle = "\\u001b[31m\\u009b2J\\u202e"\nbase = "910b3"\n# \x9b31m\u202e\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPREPLAY_SHARED_DEVICE", "1")
    return tmp_path


def raw_controls(text: str, where: str) -> list[str]:
    return [f"{where}: {text[max(0, m.start() - 60) : m.end() + 20]!r}" for m in [ACTED_ON.search(text)] if m]


def run(*arguments: str) -> list[str]:
    """What comes out raw of a command: on stdout and stderr, in names of new files and in files of text."""
    before = set(Path.cwd().rglob("*"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = CliRunner().invoke(opreplay, list(arguments), env={"COLUMNS": "120"})
    what = " ".join(arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), (what, done.exception)
    found = raw_controls(done.stdout, f"{what} (stdout)") + raw_controls(done.stderr, f"{what} (stderr)")
    for path in sorted(set(Path.cwd().rglob("*")) - before):
        found += raw_controls(os.fsdecode(path), f"{what} (name)")
        if path.is_file() and path.suffix not in BINARY:
            text = path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")
            found += raw_controls(text, f"{what} ({path.name})")
    RAN.append((done.exit_code, arguments))
    return found


def readers() -> Iterator[tuple[str, ...]]:
    for by in ("op", "category", "module", "kernel", "phase", "step", "launch"):
        for form in ("table", "json", "csv"):
            yield "inspect", "a.json", "--by", by, "--format", form
    for form in ("table", "json"):
        yield "plan", "a.json", "--select", "all", "--notes", "--format", form
        yield "plan", "a.json", "--meta", "--format", form
        yield "simulate", "a.json", "--select", "all", "--soc", "device.toml", "--notes", "--format", form
        yield "timeline", "a.json", "--format", form, "--notes"
        yield "timeline", "a.json", "--what-if", f"gemm_*{EVIL}=0", "--format", form
        yield "timeline", "a.json", "b.json", "--ranks", "--format", form
        yield "compare", "a.json", "b.json", "--all", "--format", form
        yield "list", "devices", "--show", "device.toml", "--format", form
        yield "batch", "a.json", "b.json", "--dry-run", "--format", form
        yield "op", f"aten::mm(f32[4,4], '{EVIL}')", "--no-measure", "--format", form
        yield "check", "aten::mm", "--trace", "a.json", "--set", "points=stateless", "--format", form
    yield "plan", "a.json", "--explain", "#1"
    yield "plan", "a.json", "--explain", f"aten::{EVIL}"
    yield "plan", f"no {EVIL}.json"
    yield "plan", "a.json", "--op", EVIL
    yield (EVIL,)
    yield "list", "devices", "--show", "device.toml", "--format", "toml"
    yield "compare", "a.json", "b.json", "--all", "--format", "markdown"
    yield "compare", "a.json", "b.json", "-o", "compare.html"
    yield "timeline", "a.json", "-o", "step.html", "--timeline", "out.json"
    yield "timeline", "a.json", "b.json", "--ranks", "-o", "ranks.html"
    yield "simulate", "a.json", "--select", "all", "-o", "s.html"
    yield "plan", "a.json", "--select", "all", "-o", "plan.json"
    yield "trim", "a.json", "--step", "1", "-o", "trimmed.json"
    yield "trim", "a.json", "--include", f"*{EVIL}*", "-o", "trimmed2.json"
    yield "new", "op", f"aten::{EVIL}", "--trace", "a.json", "-o", "new.py"


OUTPUTS = {
    "bundle": "",
    "backendbench": ".txt",
    "tritonbench": ".txt",
    "chakra": ".et",
    "tracelens": ".json",
    "flashinfer-trace": "",
    "measure": ".py",
}
"""Format of `export` → suffix of its output."""


def exports(form: str) -> Iterator[tuple[str, ...]]:
    suffix = OUTPUTS[form]
    more = ("--soc", "910b3") if form == "measure" else ()
    for select in ("all", "owner", "top"):
        yield "export", "a.json", "--format", form, "--select", select, "-o", f"{select}{suffix}", *more
    if form == "bundle":
        yield "export", "a.json", "--format", form, "--select", "all", "--keep-names", "-o", "kept"
    if form == "tritonbench":
        yield "export", "a.json", "--format", form, "--select", "all", "-o", "inputs.json"


def runs() -> Iterator[tuple[str, ...]]:
    outputs = [part for suffix in ("jsonl", "html", "csv", "md") for part in ("-o", f"run.{suffix}")]
    yield "run", "a.json", "--select", "all", "--quick", "--rows", "--notes", *outputs
    yield "run", "a.json", "--select", "all", "--quick", "--format", "json"
    for form in ("table", "csv", "markdown", "html", "json"):
        yield "show", "run.jsonl", "--format", form
    yield "run", "a.json", "--select", "all", "--quick", "--resume", "-o", "run.jsonl"
    yield "compare", "run.jsonl", "run.jsonl", "--all"
    yield "batch", "a.json", "b.json", "--quick", "-o", "batch.jsonl", "-o", "batch.html"


COMMANDS = {"readers": readers, "runs": runs, **{form: partial(exports, form) for form in OUTPUTS}}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_raw_comes_out_of_a_hostile_trace(folder: Path, name: str) -> None:
    RAN.clear()
    found = [line for arguments in COMMANDS[name]() for line in run(*arguments)]
    assert not found, "\n".join(found)
    failed = [line for line in RAN if line[0] not in (0, 1)]
    assert len(failed) <= len(RAN) // 4, failed
