"""One way from a trace to results: only the job calls the stages."""

from __future__ import annotations

import ast

import pytest

STAGES = {
    "plan_of": "opreplay.replay.plan.inputs",
    "run_events": "opreplay.replay.job.measuring",
    "OpPredictor": "opreplay.replay.job.predicting",
}
"""Function of a stage → the module that defines it. Outside `job` a plan, its predictions and a run come from a Job."""
ONE_OP = ("opreplay.replay.session.op",)
"""Modules that predict an op which has no job: it is a row of a plan that somebody else opened."""


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_the_stages_are_called_by_the_job_alone(sources, stage: str) -> None:
    wrong = [
        f"{source.path}:{node.lineno} imports {stage}: get it from a Job (`replay/job/job.py`)"
        for source in sources
        if not source.module.startswith("opreplay.replay.job") and source.module not in ONE_OP
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom) and node.module == STAGES[stage]
        if stage in {alias.name for alias in node.names}
    ]
    assert not wrong, "\n".join(wrong)
