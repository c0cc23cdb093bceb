# pyright: strict
"""Time, memory and success of opreplay and other tools at the same work on public traces.

    python -m benchmarks.peers --install FOLDER     # once: a virtual environment with the other tools, from PyPI
    python -m benchmarks.peers FOLDER [--write]     # --write keeps the figures, from which the document is written

Steps, each in a fresh process with one thread: list the unique ops of a trace with their arguments; build the call of
each with its tensors; replay the 20 heaviest for 20 ms each. `benchmarks/peer_steps.py` has each tool's way to do it.
What is listed differs: opreplay and the script take ops that launch kernels, HTA all ops.

TraceLens (AMD-AGI) and BackendBench (meta-pytorch) are not on PyPI, so they are not run: the `tracelens` there is
another project, and BackendBench reads lists of calls, no profiles.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.costs import ONE_THREAD, cost_of

ROOT = Path(__file__).resolve().parents[1]
RECORDED = Path(__file__).with_suffix(".json")
TRACES = ("h100_timesformer", "h100_owlv2_large", "mi300_sglang_prefilldecode")
STEPS = ("list", "build", "replay")
LIMIT_S = 900.0
PACKAGES = ("torch==2.13.0", "numpy", "pandas", "orjson", "networkx>=3.1", "plotly", "psutil", "pydot", "pyyaml")
WITHOUT_DEPENDENCIES = ("HolisticTraceAnalysis==0.5.0",)
"""HTA also asks for JupyterLab and pytest, which nothing here uses."""


class Tool(NamedTuple):
    """A tool to compare."""

    label: str
    module: str
    steps: tuple[str, ...] = STEPS
    """Those that it has."""
    source: str = "PyPI"
    """Where it is installed from."""


TOOLS = {
    "opreplay": Tool("opreplay", "opreplay"),
    "tracelens": Tool("TraceLens", "TraceLens", steps=(), source="not on PyPI, whose tracelens is another project"),
    "hta": Tool("HTA", "hta.trace_analysis", steps=("list",)),
    "script": Tool("pandas + orjson", "pandas, orjson, torch"),
    "backendbench": Tool(
        "BackendBench", "BackendBench", steps=(), source="not on PyPI; reads lists of calls, no profiles"
    ),
}


def install(folder: Path) -> None:
    """Create a virtual environment with the tools that PyPI has."""
    venv.create(folder, with_pip=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, *PACKAGES], check=True)
    subprocess.run([*pip, "--no-deps", *WITHOUT_DEPENDENCIES], check=True)


def python_of(name: str, folder: Path) -> Path:
    """Return the interpreter that has a tool."""
    return Path(sys.executable) if name == "opreplay" else folder / "bin" / "python"


def lacking(name: str, folder: Path) -> str:
    """Return why a tool cannot take part; "" if it can."""
    tool = TOOLS[name]
    if not tool.steps:
        return tool.source
    failure = cost_of([python_of(name, folder), "-c", f"import {tool.module}"], cwd=folder).failure
    return f"{tool.source}; {failure}" if failure else ""


def measured(name: str, step: str, trace: Path, folder: Path) -> dict[str, Any]:
    """Return what a step of a tool took and got done, or why it failed."""
    command = [python_of(name, folder), ROOT / "benchmarks" / "peer_steps.py", name, step, trace]
    cost = cost_of(command, limit_s=LIMIT_S, env=ONE_THREAD, cwd=folder)
    if cost.failure:
        return {"failure": cost.failure}
    counts: dict[str, int] = json.loads(cost.stdout.strip().rpartition("\n")[2])
    return {**counts, "cpu_s": cost.cpu_s, "mb": cost.peak_mb}


def markdown(found: dict[str, Any]) -> str:
    """Return the figures as a table."""
    lines = ["| trace, tool | ops listed | calls built | replayed |", "|---|---|---|---|"]
    for trace, tools in found["traces"].items():
        for name, steps in tools.items():
            cells = [_cell(steps.get(step)) for step in STEPS]
            lines.append(f"| {trace}, {TOOLS[name].label} | {' | '.join(cells)} |")
    lines += [f"| {TOOLS[name].label} | not run: {why} | | |" for name, why in found["lacking"].items()]
    return "\n".join(lines)


def _cell(step: dict[str, Any] | None) -> str:
    if step is None:
        return "–"
    if "failure" in step:
        return f"fails: {step['failure'][:80]}"
    count = f"{step['done']}" if step["done"] == step["of"] else f"{step['done']} of {step['of']}"
    return f"{count}; {step['cpu_s']:.1f} s, {step['mb']:,.0f} MB"


def main() -> None:
    """Install the tools, or measure them all and print the table."""
    parser = argparse.ArgumentParser(description="opreplay and other tools at the same work.")
    parser.add_argument("folder", type=Path, nargs="?", help="virtual environment with the other tools")
    parser.add_argument("--install", type=Path, metavar="FOLDER", help="create this environment")
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces")
    parser.add_argument("--write", action="store_true", help=f"keep the figures in {RECORDED.name}")
    args = parser.parse_args()
    if args.install is not None:
        install(args.install)
    if (folder := args.folder) is None:
        return
    folder = folder.resolve()
    reasons = {name: why for name in TOOLS if (why := lacking(name, folder))}
    found: dict[str, Any] = {"traces": {}, "lacking": reasons}
    for trace in TRACES:
        path = (args.traces / f"{trace}.json.gz").resolve()
        tools = found["traces"].setdefault(trace, {})
        for name in (name for name in TOOLS if name not in reasons):
            tools[name] = {step: measured(name, step, path, folder) for step in TOOLS[name].steps}
            print(f"{trace}: {TOOLS[name].label}: {' | '.join(map(_cell, tools[name].values()))}", flush=True)
    if args.write:
        RECORDED.write_text(json.dumps(found, indent=1) + "\n")
    print(markdown(found))


if __name__ == "__main__":
    main()
