"""A step has the same figures in every command, as text, as JSON and on pages: public traces that mark steps."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.replay.ir.step import StepReport
from opreplay.replay.report.step.verdict import step_rows, verdict
from opreplay.replay.timeline.timeline import step_of
from opreplay.traces import read_trace
from tests.replay.timeline.machine import training

pytestmark = pytest.mark.slow

MARKED = (
    "cpu_only_rank34",
    "h100_bert_small",
    "h100_qwen1.5_0.5b",
    "mi250_minitoy_train",
    "mi300_sglang_prefilldecode",
    "mi300_vllm_piecewise_exec",
    "npu_alexnet_trace_view",
    "npu_timeline_trace_view",
    "nvidia_sampled_rank0",
    "param_dlrm_worker0_kineto",
)
SEQUENCE = ("--mode", "sequence", "--set", "total_time=0.01s", "--set", "op_time=1ms", "--select", "owner")
"""Of a run that ends as soon as it can: what it says of the recorded step does not depend on what it measures."""


def invoked(*arguments: object) -> str:
    done = CliRunner().invoke(opreplay, [*map(str, arguments)])
    assert done.exit_code in (0, 1), done.output
    return done.stdout


def figures(step: dict[str, Any]) -> dict[str, Any]:
    return {key: step[key] for key in ("window", "busy_us", "idle_us", "bound", "device_sum_us")}


def rows_on(page: Path) -> dict[str, str]:
    found = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page.read_text())
    return {html.unescape(name): html.unescape(text) for name, text in found}


SHOWN = ("cpu_only_rank34", "h100_qwen1.5_0.5b", "npu_timeline_trace_view", "param_dlrm_worker0_kineto")
"""Those of which the text and the pages are read, too: one of each kind."""


def told_alike(trace: str, step: StepReport, folder: Path, *, shown: bool = True) -> None:
    """Every command tells this step, and where it is `shown`, shows it in text and on pages."""
    rows = [(name, text) for name, text, _ in step_rows(step)]
    pages = {name: folder / f"{name}.html" for name in ("timeline", "simulate", "compare", "run")}
    commands = {
        "inspect": ("inspect", trace),
        "timeline": ("timeline", trace, "-o", pages["timeline"]),
        "simulate": ("simulate", trace, "--soc", "910b3", "-o", pages["simulate"]),
        "compare": ("compare", trace, trace, "-o", pages["compare"]),
        "run": ("run", trace, *SEQUENCE, "-o", pages["run"]),
    }
    for name, command in commands.items():
        json_alone = command[: command.index("-o")] if "-o" in command else command
        written = json.loads(invoked(*json_alone, "--format", "json"))["step"]
        sides = written.values() if name == "compare" else [written]
        for side in sides:
            assert figures(side) == figures(msgspec.to_builtins(step)), name
        if not shown:
            continue
        text = " ".join(invoked(*command, *(["--notes"] if name != "compare" else [])).split())
        bound, colon, opening = verdict(step).partition(". ")[0].rstrip(".").partition(": ")
        assert (opening if colon else bound) in text, name
        if name == "compare":  # has the parts of both steps in a table
            continue
        for row, words in rows:
            assert f"{row} {words}" in text, (name, row)
        if name in pages:
            shown = rows_on(pages[name])
            assert {row: shown[row] for row, _ in rows} == dict(rows), name


def test_a_step_is_told_alike_by_every_command(tmp_path: Path) -> None:
    path = training().write(tmp_path / "t.json")
    step = step_of(read_trace(path, activity=True))
    assert step is not None
    told_alike(path, step, tmp_path)


@pytest.mark.parametrize("name", MARKED)
def test_the_step_of_a_public_trace_is_told_alike_by_every_command(
    name: str, shared_traces: Path, tmp_path: Path
) -> None:
    path = shared_traces / f"{name}.json.gz"
    step = step_of(read_trace(path, activity=True))
    assert step is not None
    assert step.marked
    told_alike(str(path), step, tmp_path, shown=name in SHOWN)
