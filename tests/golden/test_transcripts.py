"""What users see: commands at 80 columns, with everything they print, beside transcripts/NAME.txt.

Where a change of the output is meant, run `pytest tests/golden --update-golden` and read the diff.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opreplay.cli.main import COMMANDS, opreplay
from tests.golden.inputs import forget_registrations

TRANSCRIPTS = Path(__file__).with_name("transcripts")

SESSIONS: dict[str, tuple[str, ...]] = {
    "run": ("run cnn_train.json.gz --quick",),
    "run_to_file_and_show": (
        "run transformer_infer.json.gz --top 5 --soc 910b3 --soc 910c -o results.jsonl",
        "show results.jsonl",
        "show results.jsonl --format markdown --notes",
        "show results.jsonl --format csv",
    ),
    "run_ranks_of_a_job": ("run ddp_step_rank0.json.gz ddp_step_rank1.json.gz --top 3",),
    "run_what_cannot_run": (
        "run mixed.json --notes",
        "run mixed.json --plugin plugin.py --include mylib::* --rows",
        "run mixed.json --max-failed 0 --include vllm::*",
    ),
    "batch": ("batch ranks moe_block.json.gz --top 2 -o nights.jsonl", "show nights.jsonl"),
    "run_dry": ("run moe_block.json.gz --dry-run --top 5",),
    "plan": ("plan transformer_infer.json.gz --top 5 --notes", "plan mixed.json", "plan mixed.json --meta"),
    "plan_explain": ("plan moe_block.json.gz --explain aten::topk", "plan mixed.json --explain vllm::unheard_of"),
    "plan_to_file": ("plan moe_block.json.gz --top 2 -o plan.json", "run plan.json", "simulate plan.json"),
    "simulate": ("simulate cnn_train.json.gz --soc 910b3 --soc 950pr --losers 3",),
    "simulate_cluster": ("simulate step.json --cluster 2x8x910b3", "simulate step.json --cluster 1x8x910b3"),
    "inspect": ("inspect transformer_infer.json.gz", "inspect gpu.json", "inspect ."),
    "inspect_by": (
        "inspect transformer_infer.json.gz --by op --top 5",
        "inspect transformer_infer.json.gz --by category",
        "inspect transformer_infer.json.gz --by phase",
        "inspect gpu.json --by step",
        "inspect gpu.json --by launch",
        "inspect gpu.json --by kernel --format csv",
    ),
    "timeline": ("timeline gpu.json --what-if aten::mm=0.5x --what-if nccl*=0 --notes",),
    "timeline_advice": ("timeline gpu.json --advise",),
    "timeline_simulated": ("timeline transformer_infer.json.gz --soc 910b3",),
    "timeline_ranks": ("timeline ranks --ranks",),
    "compare": (
        "run moe_block.json.gz --top 4 -o before.jsonl",
        "run moe_block.json.gz --top 5 -o after.jsonl",
        "compare before.jsonl after.jsonl --all --fail-if total>3%",
        "compare before.jsonl --times measured:simulated",
    ),
    "compare_traces": (
        "compare ddp_step_rank0.json.gz ddp_step_rank1.json.gz --format markdown",
        "compare moe_block.json.gz --times recorded:910b3",
    ),
    "capture": ("capture model.py:make -o captured.json", "plan captured.json --top 3", "simulate captured.json"),
    "capture_config": ("capture hf:config.json --vary batch=1,8 context=128,1k --phase decode",),
    "op": (
        "op 'aten::mm(bf16[64,32], bf16[32,n])' --vary n=1,47,128 --soc 910b3 --soc 910c",
        "op --file calls.txt",
    ),
    "check": ("check aten::gelu --shapes 'f32[4,8]' --set points=schema,correctness",),
    "export": (
        "export moe_block.json.gz --top 3 -o bundle",
        "export moe_block.json.gz --top 3 --format tritonbench -o calls.txt --force",
        "export mixed.json --format chakra -o step.et",
    ),
    "tile": ("tile tiles.py --case 'scale x=f32[256,512]' --no-values --lines",),
    "validate_and_calibrate": (
        "validate kernel_details_910b3.csv --soc 910b3",
        "calibrate kernel_details_910b3.csv --soc 910b3 -o mine.toml --name mine",
        "validate kernel_details_910b3.csv --soc mine.toml",
    ),
    "trim": ("trim gpu.json --step 1 -o part.json.gz", "inspect part.json.gz"),
    "list": (
        "list devices",
        "list initializers",
        "list plugins",
    ),
    "new": (
        "new op mylib::double --trace mixed.json -o made.py",
        "new estimator aten::mm --trace mixed.json -o estimate.py",
    ),
    "doctor_trust_mcp": ("doctor", "trust nothing.toml", "mcp nowhere"),
    "shells": ("completion bash", "man"),
    "refusals": (
        "",
        "run nothing.json",
        "run mixed.json --soc 910b9",
        "run mixed.json --include aten::bmm",
        "run mixed.json --set op_tim=1ms",
        "plan cut.json",
        "simulate tiles.py",
        "op 'aten::mm(f32[4'",
        "op 'aten::nothing_like_it(f32[3])'",
        "compare mixed.json",
        "timeline mixed.json --step 7",
        "simulate step.json --cluster 2x910",
        "show mixed.json",
        "inspcet mixed.json",
    ),
}
"""Transcript → command lines, in one folder; `.` is that of `write_inputs`."""

SLOW = frozenset({"check", "capture_config"})
"""Those that import torch in processes of their own, or transformers."""

MOST_LINES = 70
"""Of one command; what follows is left out."""


def transcript(lines: tuple[str, ...], folder: Path) -> str:
    """The command lines with what they print and their exit codes, as in a terminal of 80 columns."""
    parts: list[str] = []
    for line in lines:
        forget_registrations()
        done = CliRunner(env={"COLUMNS": "80"}).invoke(opreplay, shlex.split(line), prog_name="opreplay")
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        parts.append(f"$ opreplay {line}\n")
        rows = [f"{mark}{row}\n" for mark, text in (("", done.stdout), ("! ", done.stderr)) for row in _rows(text)]
        parts += [*rows[:MOST_LINES], *["…\n"][: len(rows) > MOST_LINES]]
        parts.append(f"[exit code {done.exit_code}]\n\n")
    return normalised("".join(parts), folder)


def _rows(text: str) -> list[str]:
    """The lines of a text, each as it stands in the end where it was written over."""
    return [row.rstrip("\r").rsplit("\r", 1)[-1].rstrip() for row in text.split("\n")[: -1 if text else None] if text]


CHANGING: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"(?m)^! .*\b\d+/\d+ (ops|trials)\n", ""),
    (r"(?m)^([✓✗–])( +\w[\w ]*?)  .*\n(   .*  .*\n)*", r"?\2\n"),
    (r"at most \S+ ulp", "at most SOME ulp"),
    (r"\bin \d[\d.]* (s|ms|min)\b", "in TIME"),
    (r"\b20\d\d-\d\d-\d\d(T[\d:.+]+)?", "DATE"),
    (r"\b(opreplay|torch|Python|numpy|pandas|transformers|triton|ray|rich|click) \d+(\.\w+)+(\+\w+)?", r"\1 VERSION"),
)
"""What differs from one run or machine to the next, as rows of progress and of `doctor`, and what stands for it."""


def normalised(text: str, folder: Path) -> str:
    """The text without this machine's folders, times and versions."""
    text = text.replace(str(folder), "FOLDER").replace(str(Path.home()), "~")
    for pattern, put in CHANGING:
        text = re.sub(pattern, put, text)
    return text


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in SESSIONS]
)
def test_transcript(name: str, folder: Path, golden: Callable[[Path, str], None]) -> None:
    golden(TRANSCRIPTS / f"{name}.txt", transcript(SESSIONS[name], folder))


def test_every_command_has_a_transcript() -> None:
    shown: set[Any] = {shlex.split(line)[0] for lines in SESSIONS.values() for line in lines if line}
    assert set(COMMANDS) <= shown
    assert {path.stem for path in TRANSCRIPTS.iterdir()} == set(SESSIONS)
