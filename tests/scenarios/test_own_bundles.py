"""A bundle of a user's own ops replays with the module that defines them, named by whoever runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

pytestmark = pytest.mark.slow

LIBRARY = """
import torch
library = torch.library.Library("bundledlib", "DEF")
library.define("twice(Tensor x, float factor=2.0) -> Tensor")
library.impl("twice", lambda x, factor=2.0: x * factor, "CompositeExplicitAutograd")
"""


def test_a_bundle_of_own_ops_is_told_what_to_import(
    console: Callable[..., Result], trace_of: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bundledlib_ops.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(tmp_path))
    args = {"Input Dims": [[4, 8], []], "Input type": ["float", "Double"], "Concrete Inputs": ["", "3.0"]}
    call = {"ph": "X", "cat": "cpu_op", "name": "bundledlib::twice", "pid": 1, "tid": 1, "ts": 1.0, "dur": 5.0}
    trace, out = trace_of({**call, "args": args}), tmp_path / "bundle"
    refused = console("export", trace, "-o", out, "--select", "all", code=2)
    assert "--allow-import bundledlib=MODULE" in " ".join(refused.stderr.split())
    console("export", trace, "-o", out, "--select", "all", "--allow-import", "bundledlib=bundledlib_ops")

    def replay(*more: str) -> list[dict[str, str]]:
        done = subprocess.run(
            [sys.executable, out / "replay.py", "--json", "--iterations", "2", *more],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            timeout=120,
        )
        return json.loads(done.stdout)["results"]

    (without,) = replay()
    assert without["status"] == "failed"
    assert "--import bundledlib=MODULE" in without["reason"]
    (found,) = replay("--import", "bundledlib=bundledlib_ops")
    assert found["status"] == "replayed", found
