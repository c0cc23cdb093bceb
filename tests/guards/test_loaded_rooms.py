"""A command loads the rooms that it needs, and torch where it resolves ops: each in an interpreter of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from opreplay.traces.samples import sample_path
from tests.guards.test_rooms import room_of

SAMPLE = str(sample_path("moe_block"))
RAN = """
import json, sys
from opreplay.cli.main import opreplay
try:
    opreplay(sys.argv[2:])
except SystemExit as stop:
    assert not stop.code, stop.code
with open(sys.argv[1], "w") as file:
    json.dump(sorted(name for name, module in sys.modules.items() if getattr(module, "__file__", None)), file)
"""

READING = frozenset({"traces", "cli", "replay", "replay.host", "replay.ir", "replay.collectives"})
"""What every command loads that reads a trace."""
PLANNING = READING | {"initializers", "replay.arguments", "replay.ops", "replay.resolve", "replay.plan"}
PREDICTING = PLANNING | {"replay.plugins", "replay.ascend", "replay.results", "replay.report"}
RUNNING = PREDICTING | {"replay.execute", "replay.job"}

PAGES = "replay.report.page"
"""Taken for a room: most commands write no page."""

COMMANDS = {
    "run": (["run", SAMPLE, "--top", "1", "--set", "op_time=1ms"], RUNNING),
    "run --dry-run": (["run", SAMPLE, "--top", "1", "--dry-run"], RUNNING),
    "plan": (["plan", SAMPLE], RUNNING),
    "simulate": (["simulate", SAMPLE], RUNNING | {"replay.timeline"}),
    "inspect": (["inspect", SAMPLE], PREDICTING | {"replay.timeline"}),
    "timeline": (["timeline", SAMPLE], RUNNING | {"replay.timeline", PAGES}),
    "op": (["op", "aten::mm(f32[2,2], f32[2,2])", "--no-measure"], RUNNING),
    "list devices": (["list", "devices"], PREDICTING),
    "list initializers": (["list", "initializers"], PREDICTING),
    "doctor": (["doctor"], PREDICTING),
    "trim": (["trim", SAMPLE, "--between", "1us..9ms", "-o", "part.json"], PREDICTING),
}
"""Command → (its arguments, the rooms that it may load)."""

WITHOUT_TORCH = frozenset({"inspect", "timeline", "list devices", "trim"})


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_loads_what_it_needs(command: str, tmp_path: Path) -> None:
    arguments, allowed = COMMANDS[command]
    facts = tmp_path / "modules.json"
    done = subprocess.run(
        [sys.executable, "-c", RAN, str(facts), *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    loaded = json.loads(facts.read_text())
    assert command not in WITHOUT_TORCH or "torch" not in loaded
    own = [name for name in loaded if name.startswith("opreplay.")]
    rooms = {name: PAGES if name.startswith(f"opreplay.{PAGES}") else room_of(name) for name in own}
    extra = [name for name, room in rooms.items() if room not in allowed]
    assert not extra, f"import them where they are used, or allow their rooms in COMMANDS: {extra}"
