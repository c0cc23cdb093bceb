"""The console script in this process, and traces made of a few lines, for scenarios that a user would meet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.initializers.extensions import clear_registrations as clear_initializers
from opreplay.replay import plugins
from opreplay.replay.ascend.custom.estimators import clear_registrations

Console = Callable[..., Result]
"""(*arguments, code=0) of `opreplay` → what it printed; the exit code must be `code`."""


@pytest.fixture
def console(forked_children: None) -> Iterator[Console]:
    """Runs `opreplay` with these arguments, each time without what users' files registered before."""

    def forget() -> None:
        clear_registrations()
        plugins.clear_registrations()
        clear_initializers()

    def run(*arguments: object, code: int = 0) -> Result:
        forget()
        done = CliRunner(env={"COLUMNS": "80"}).invoke(opreplay, [str(a) for a in arguments])
        assert done.exit_code == code, (done.exit_code, done.stdout[-2000:], done.stderr[-2000:], done.exception)
        return done

    yield run
    forget()


def op(
    name: str,
    ts: float,
    dims: Sequence[Any],
    types: Sequence[str],
    values: Sequence[str] | None = None,
    *,
    dur: float = 10.0,
    id_: int | None = None,
    strides: Sequence[Any] | None = None,
) -> dict[str, Any]:
    """One recorded call on the host."""
    args: dict[str, Any] = {
        "Input Dims": list(dims),
        "Input type": list(types),
        "Concrete Inputs": list(values) if values is not None else [""] * len(dims),
    }
    if strides is not None:
        args["Input Strides"] = list(strides)
    if id_ is not None:
        args["External id"] = id_
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def launch(ts: float, number: int) -> dict[str, Any]:
    """The launch of kernel `number` on the host."""
    args = {"correlation": number, "External id": number}
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 1,
        "tid": 1,
        "ts": ts,
        "dur": 1.0,
        "args": args,
    }


def kernel(
    name: str, ts: float, dur: float, number: int, *, category: str = "kernel", stream: int = 7
) -> dict[str, Any]:
    """Device work with this correlation number."""
    args = {"correlation": number, "External id": number, "device": 0, "stream": stream}
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": args}


def note(name: str, ts: float, dur: float) -> dict[str, Any]:
    """An annotation of the user's or a server's."""
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur}


@pytest.fixture
def trace_of(tmp_path: Path) -> Callable[..., Path]:
    """(*events, device="NVIDIA H100", name="t.json") → a trace file of them."""

    def write(*events: dict[str, Any], device: str | None = "NVIDIA H100", name: str = "t.json") -> Path:
        made: dict[str, Any] = {"schemaVersion": 1, "traceEvents": list(events)}
        if device is not None:
            made["deviceProperties"] = [{"id": 0, "name": device}]
        path = tmp_path / name
        path.write_text(json.dumps(made))
        return path

    return write
