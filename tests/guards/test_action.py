"""The GitHub Action and the Dockerfile: the action's own scripts run, its inputs are described, files exist."""

from __future__ import annotations

import gzip
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from opreplay.traces.samples import sample_path

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ACTION = (ROOT / ".github" / "actions" / "opreplay" / "action.yml").read_text()
PARTS = yaml.safe_load(ACTION)
STEPS = {str(part["name"]).partition(" ")[0]: str(part["run"]) for part in PARTS["runs"]["steps"] if "run" in part}


def step(name: str, folder: Path, **environment: str) -> tuple[int, str]:
    """A step of the action as a runner runs it: `bash --noprofile --norc -eo pipefail`."""
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[name]],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
            "OPREPLAY_SHARED_DEVICE": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_scripts_of_the_action(tmp_path: Path) -> None:
    trace, few = str(sample_path("transformer_infer")), "--include aten::silu --op-time 200ms --threads 1"
    for results in ("before.jsonl", "after.jsonl"):
        code, text = step("Measure", tmp_path, TRACE=trace, ARGUMENTS=few, RESULTS=results)
        assert code == 0, text
    sides = {"BASELINE": "before.jsonl", "RESULTS": "after.jsonl"}
    code, text = step("Compare", tmp_path, CONDITIONS="lost>0 total>900%", **sides)
    assert code == 0, text
    assert "aten::silu" in text or "compared" in text
    assert (tmp_path / "summary.md").read_text() == (tmp_path / "comparison.md").read_text()
    code, text = step("Compare", tmp_path, CONDITIONS="unclear>0% total>0% slower>0%", **sides)
    assert code in (0, 5), text
    code, text = step("Measure", tmp_path, TRACE="none.json", ARGUMENTS="", RESULTS="none.jsonl")
    assert code == 3, "no trace: the job fails"


GH = """#!/usr/bin/env bash
printf '%s\\n' "$*" >> calls
[ -z "$GH_TOKEN" ] && exit 4
case "$*" in *--edit-last*) [ -e commented ] || exit 1 ;; esac
touch commented
cp comparison.md posted.md
"""


@pytest.fixture
def commenting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a verdict, and a `gh` that notes what it is asked."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gh").write_text(GH)
    (tmp_path / "bin" / "gh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_the_verdict_is_commented_once_and_then_edited(commenting: Path) -> None:
    trace = str(sample_path("transformer_infer"))
    code, text = step("Compare", commenting, CONDITIONS="slower>5%", BASELINE=trace, RESULTS=trace)
    assert code == 0, text
    around = {"PULL_REQUEST": "7", "GH_REPO": "a/b", "GH_TOKEN": "secret"}
    code, text = step("Comment", commenting, **around)
    assert (code, text) == (0, "")
    assert (commenting / "posted.md").read_text().startswith("### opreplay: step 1.000× (same): ")
    assert step("Comment", commenting, **around)[0] == 0
    asked = (commenting / "calls").read_text().splitlines()
    edit, new = "pr comment 7 --body-file comparison.md --edit-last", "pr comment 7 --body-file comparison.md"
    assert asked == [edit, new, edit]
    # Without the right to comment the job goes on; without a verdict there is nothing to say.
    code, text = step("Comment", commenting, **{**around, "GH_TOKEN": ""})
    assert code == 0
    assert "::warning::" in text
    code, text = step("Compare", commenting, CONDITIONS="", BASELINE="none.jsonl", RESULTS=trace)
    assert code == 3
    (commenting / "calls").unlink()
    assert step("Comment", commenting, **around)[0] == 0
    assert not (commenting / "calls").exists()


def test_a_number_of_a_pull_request_is_one_word(commenting: Path) -> None:
    (commenting / "comparison.md").write_text("verdict")
    step("Comment", commenting, PULL_REQUEST="7; touch ran $(touch ran)", GH_REPO="a/b", GH_TOKEN="secret")
    assert not (commenting / "ran").exists()
    assert "7; touch ran $(touch ran)" in (commenting / "calls").read_text()


def test_steps_run_where_they_should() -> None:
    conditions = {str(part.get("name")).partition(" ")[0]: part.get("if", "") for part in PARTS["runs"]["steps"]}
    assert conditions["Measure"] == "inputs.after == ''"
    assert conditions["Comment"].startswith("always() && inputs.comment == 'true'")
    assert "steps.compare.outcome" in conditions["Comment"], "a comparison.md of the checkout is no verdict"
    assert PARTS["inputs"]["comment"]["default"] == "false"


def test_arguments_may_be_quoted_and_files_may_begin_with_a_dash(tmp_path: Path) -> None:
    (tmp_path / "opreplay.toml").write_text("[run]\nplugin = 'evil.py'\n")
    (tmp_path / "evil.py").write_text("open('ran', 'w').close()\n")
    (tmp_path / "shlex.py").write_text("open('ran', 'w').close()\n")
    (tmp_path / "-x.json").write_bytes(gzip.decompress(sample_path("transformer_infer").read_bytes()))
    given = "--include 'aten::silu' --op-time \"200 ms\""
    code, text = step("Measure", tmp_path, TRACE="-x.json", ARGUMENTS=given, RESULTS="-r.jsonl", OPREPLAY_CONFIG="none")
    assert code == 0, text
    assert (tmp_path / "-r.jsonl").exists()
    assert not (tmp_path / "ran").exists()
    assert "default: none" in ACTION[ACTION.index("  config:") : ACTION.index("  python-version:")]
    assert ACTION.count("OPREPLAY_CONFIG: ${{ inputs.config }}") == 2, "of the steps that run it"


def test_inputs_reach_scripts_as_environment_alone() -> None:
    """An input in the text of a script would be run as a part of it."""
    assert set(STEPS) == {"Install", "Measure", "Compare", "Comment"}
    assert not [name for name, script in STEPS.items() if "${{" in script]


def test_every_input_is_described_and_used() -> None:
    part = ACTION[ACTION.index("inputs:") : ACTION.index("outputs:")]
    names = re.findall(r"^  ([\w-]+):$", part, re.MULTILINE)
    page = (ROOT / "docs" / "where-you-work.md").read_text()
    assert len(names) > 5
    assert [name for name in names if f"`{name}`" not in page] == []
    assert [name for name in names if f"inputs.{name}" not in ACTION] == []


def test_what_the_dockerfile_copies_exists() -> None:
    text = (ROOT / "Dockerfile").read_text()
    sources = [
        word for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE) for word in shlex.split(line)[:-1]
    ]
    assert sources
    assert [name for name in sources if not (ROOT / name).exists()] == []
    folders = set(re.findall(r'^"opreplay[\w.]*" = "(\w+)', (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    assert folders <= set(sources), "a top folder of the package is missing in the image"


@pytest.mark.parametrize("file", ["README.md", "LICENSE"])
def test_the_image_has_what_the_build_reads(file: str) -> None:
    assert file in (ROOT / "pyproject.toml").read_text()
    assert file in (ROOT / "Dockerfile").read_text()


def test_actions_of_others_are_pinned_by_hash(root: Path) -> None:
    files = [*(root / ".github").rglob("*.yml"), *(root / "docs").rglob("*.md")]
    uses = [
        line for file in files for line in file.read_text().splitlines() if re.search(r"uses: +[\w-]+/[\w-]+@", line)
    ]
    assert uses
    assert not [line for line in uses if not re.search(r"@[0-9a-f]{40}  # v\d", line)]
