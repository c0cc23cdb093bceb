"""One way from a trace to results: only the job calls the stages, and a run loads only the rooms that it uses."""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import pytest

STAGES = {
    "plan_of": "opreplay.replay.plan.inputs",
    "run_events": "opreplay.replay.job.measuring",
    "OpPredictor": "opreplay.replay.job.predicting",
}
"""Function of a stage → the module that defines it. Outside `job` a plan, its predictions and a run come from a Job."""
ONE_OP = ("opreplay.replay.session.op",)
"""Modules that predict an op which has no job: it is a row of a plan that somebody else opened."""
NOT_FOR_RUN = ("timeline", "report.page", "tile", "capture", "check", "export", "ascend.calibrate", "session", "batch")
"""Rooms of `replay` that `run` on one trace does not import."""


@pytest.mark.parametrize("stage", STAGES)
def test_the_stages_are_called_by_the_job_alone(sources, stage: str) -> None:
    wrong = [
        f"{source.path}:{node.lineno} imports {stage}"
        for source in sources
        if not source.module.startswith("opreplay.replay.job") and source.module not in ONE_OP
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom) and node.module == STAGES[stage]
        if stage in {alias.name for alias in node.names}
    ]
    assert not wrong, "\n".join(wrong)


def loaded_by(*arguments: str) -> set[str]:
    """Return the modules of opreplay that a command imports in a fresh interpreter."""
    code = (
        "import json, sys\n"
        "from opreplay.cli.main import opreplay\n"
        "try:\n"
        f"    opreplay({list(arguments)!r})\n"
        "except SystemExit as stop:\n"
        "    assert not stop.code, stop.code\n"
        "print('\\n' + json.dumps([name for name in sys.modules if name.startswith('opreplay.')]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_a_run_loads_only_the_rooms_that_it_needs() -> None:
    from opreplay.traces.samples import sample_path

    options = ("--top", "1", "--soc", "910b3", "--set", "op_time=1ms", "--set", "shared_device=true")
    loaded = loaded_by("run", str(sample_path("transformer_infer")), *options)
    wrong = sorted(name for name in loaded for room in NOT_FOR_RUN if f"{name}.".startswith(f"opreplay.replay.{room}."))
    assert not wrong, "\n".join(wrong)
    assert len(loaded) <= MOST_MODULES, f"{len(loaded)} modules"


MOST_MODULES = 465
"""Modules of opreplay that `run` imports; the number only falls."""
