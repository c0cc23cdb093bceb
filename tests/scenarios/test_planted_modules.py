"""A folder may hold files by the names of modules: no command runs one of them, in no process that it starts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

from opreplay.cli.main import COMMANDS
from opreplay.traces import child_process
from opreplay.traces.samples import sample_path
from tests.scenarios.events import owner

pytestmark = pytest.mark.slow

OTHERS = {
    "torch",
    "numpy",
    "msgspec",
    "orjson",
    "click",
    "rich",
    "jinja2",
    "pandas",
    "isal",
    "opreplay",
    "transformers",
}
OTHERS |= {
    "ray",
    "transformers",
    "torch_npu",
    "safetensors",
    "tomli",
    "scipy",
    "sympy",
    "triton",
    "sitecustomize",
    "usercustomize",
}
"""Of packages: what opreplay imports or would like to, and what Python looks for by itself."""
SHOTS: dict[str, tuple[str, ...]] = {
    "run": ("run", "trace.json", "--top", "2", "--set", "op_time=5ms"),
    "run in order": ("run", "trace.json", "--mode", "sequence", "--top", "2", "--set", "op_time=5ms"),
    "run ranks": ("run", "trace.json", "--ranks", "2", "--top", "2", "--set", "op_time=5ms"),
    "check": ("check", "aten::relu", "--against", "aten::relu", "--shapes", "f32[8]", "--set", "points=schema,speed"),
    "batch": ("batch", "many", "--top", "1", "--set", "op_time=5ms", "--workers", "2", "--output", "batch.jsonl"),
    "inspect": ("inspect", "trace.json"),
    "inspect of a large file": ("inspect", "large.json"),
    "plan": ("plan", "trace.json", "--meta"),
    "plan of a large file": ("plan", "large.json"),
    "simulate": ("simulate", "trace.json"),
    "timeline": ("timeline", "trace.json"),
    "capture": ("capture", "model/model.py:make", "--output", "step.json"),
    "op": ("op", "aten::relu(f32[8])", "--set", "op_time=5ms"),
    "tile": ("tile", "--help"),
    "trim": ("trim", "trace.json", "--output", "trimmed.json"),
    "compare": ("compare", "results.jsonl", "results.jsonl"),
    "show": ("show", "results.jsonl"),
    "export": ("export", "trace.json", "--top", "2", "--output", "bundle"),
    "validate": ("validate", "kernels.csv", "--soc", "910b3"),
    "calibrate": ("calibrate", "kernels.csv", "--soc", "910b3"),
    "list": ("list", "plugins", "--plugin", "model/plugin.py"),
    "doctor": ("doctor",),
    "trust": ("trust", "model/opreplay.toml"),
    "completion": ("completion", "bash"),
    "man": ("man",),
    "new": ("new", "op", "aten::relu", "--trace", "many/0.json", "--output", "written.py"),
    "mcp": ("mcp", "many"),
}
MAY_FAIL = frozenset({"timeline", "validate", "calibrate", "check", "trim", "export"})
"""What the small inputs here may be too little for."""
RUNNER = """
import sys
from opreplay.replay.host import idle
from opreplay.traces.reading import parallel
parallel.MIN_PART_BYTES, idle.idle_cpus = 50_000, lambda *_: 2.0
if sys.argv[1] == "batch":  # it loads torch
    from opreplay.replay.batch import reading
    reading.POOL_FROM_BYTES = 1
from opreplay.cli.main import main
main()
"""
"""The console script, for which small files are as large ones and two processors are idle."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands run: a module by each name, that leaves a file behind, and the inputs."""
    place = tmp_path_factory.mktemp("planted")
    names = {file.split("/")[0].removesuffix(".py") for one in distributions() for file in map(str, one.files or ())}
    for name in sys.stdlib_module_names | OTHERS | {name for name in names if name.isidentifier()}:
        (place / f"{name}.py").write_text(f"open({str(place / 'planted.log')!r}, 'a').write(__name__ + '\\n')\n")
    (place / "runner").mkdir()
    (place / "runner" / "opreplay").write_text(RUNNER)
    import gzip

    (place / "trace.json").write_bytes(gzip.decompress(sample_path("transformer_infer").read_bytes()))
    (place / "many").mkdir()
    for number in range(2):
        few = [event for i in range(3) for event in owner("aten::relu", i + 1, [[64 + number]], 5.0)]
        (place / "many" / f"{number}.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": few}))
    many = [event for i in range(400) for event in owner("aten::relu", i + 1, [[64, 64 + i % 5]], 5.0)]
    (place / "large.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": many}))
    (place / "model").mkdir()
    (place / "model" / "model.py").write_text(
        "import json, torch\ndef make():\n    return torch.nn.Linear(4, 4), (torch.ones(2, 4),)\n"
    )
    (place / "model" / "plugin.py").write_text("")
    (place / "model" / "opreplay.toml").write_text("")
    (place / "kernels.csv").write_text("Name,Type,Duration(us)\nadd,Add,1.0\n")
    done = said(place, "run", "many/0.json", "--set", "op_time=5ms", "--output", "results.jsonl")
    assert done.returncode == 0, done.stderr
    return place


def said(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command as the console script runs it: with its own folder first on the path, and not the current one."""
    return subprocess.run(
        [sys.executable, str(place / "runner" / "opreplay"), *arguments],
        cwd=place,
        env={**os.environ, "OPREPLAY_SHARED_DEVICE": "1", "XDG_STATE_HOME": str(place / "state")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


def test_every_command_is_tried() -> None:
    assert {shot[0] for shot in SHOTS.values()} >= set(COMMANDS)


@pytest.mark.parametrize("shot", SHOTS)
def test_no_module_of_the_current_folder_runs(folder: Path, shot: str) -> None:
    done = said(folder, *SHOTS[shot])
    assert not (folder / "planted.log").exists(), (folder / "planted.log").read_text()
    assert "Traceback" not in done.stderr
    if shot not in MAY_FAIL:
        assert done.returncode == 0, done.stderr


def test_the_runner_would_see_them(folder: Path, tmp_path: Path) -> None:
    """The planted modules are what Python takes where a process is started as Python starts one by itself."""
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(folder / "json.py", copy)
    log = folder / "planted.log"
    subprocess.run([sys.executable, "-c", "import json"], cwd=copy, check=True)
    assert log.read_text().startswith("json\n")
    log.unlink()


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_nor_on_a_ray_cluster_of_this_machine(folder: Path) -> None:
    done = said(
        folder, "batch", "many", "--set", "op_time=5ms", "--engine", "ray", "--workers", "1", "--output", "ray.jsonl"
    )
    assert not (folder / "planted.log").exists(), (folder / "planted.log").read_text()
    assert done.returncode == 0, done.stderr


def test_a_child_gets_absolute_folders_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", ["", ".", "modules", str(tmp_path), *sys.path])
    assert child_process.module_path() == [str(tmp_path), *[entry for entry in sys.path[4:] if os.path.isabs(entry)]]
