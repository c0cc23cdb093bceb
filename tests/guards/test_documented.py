"""The documentation names all there is: commands, flags, devices, initializers, samples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from opreplay.cli.main import COMMANDS
from opreplay.replay.ascend import list_devices
from opreplay.traces.samples import SAMPLES


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_documented(command: str, docs_text: str) -> None:
    described = re.search(rf"\bopreplay {command}\b", docs_text) is not None
    assert described, f"describe `opreplay {command}` in docs/cli.md"


@pytest.mark.parametrize("device", list_devices())
def test_device_is_documented(device: str, docs_text: str) -> None:
    named = re.search(rf"\b{device}\b", docs_text, re.IGNORECASE) is not None
    assert named, f"name {device} in docs/ascend-model.md"


@pytest.mark.parametrize("sample", SAMPLES)
def test_sample_is_documented(sample: str, docs_text: str) -> None:
    described = f"`{sample}`" in docs_text
    assert described, f"describe `{sample}` in docs/samples.md"


def test_initializers_are_documented(docs_text: str) -> None:
    from opreplay.replay.ops.inputs import built_in

    missing = [rule.name for rule in built_in() if f"`{rule.name}`" not in docs_text]
    assert not missing, f"describe them in docs/initializers.md: {missing}"


def test_every_page_is_reached_from_the_index(root: Path) -> None:
    index = (root / "docs" / "index.md").read_text()
    entries = set(re.findall(r"^([\w*/.-]+)$", index, re.MULTILINE))
    pages = [path.relative_to(root / "docs") for path in (root / "docs").rglob("*.md") if path.name != "index.md"]
    lost = [str(page) for page in pages if not any(page.with_suffix("").match(entry) for entry in entries)]
    assert not lost, f"name them in a toctree of docs/index.md: {lost}"


def test_local_links_lead_somewhere(root: Path) -> None:
    broken = []
    for page in [*root.glob("*.md"), *(root / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(root)} → {target}")
    assert not broken, f"links to files that do not exist: {broken}"


def test_benchmarks_are_documented_and_exist(root: Path) -> None:
    page = (root / "docs" / "benchmarks.md").read_text()
    named = set(re.findall(r"benchmarks/(\w+\.py)", page))
    scripts = {path.name for path in (root / "benchmarks").glob("*.py")}
    assert named == scripts, f"add to, or remove from, docs/benchmarks.md: {named ^ scripts}"
