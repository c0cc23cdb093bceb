"""Runs every console command of an installed wheel: --help of each, and a real one on a bundled trace."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path


def run(*command: str) -> str:
    """Standard output of a command, which must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Exit with a message at the first command that fails."""
    scripts = [script for script in entry_points(group="console_scripts") if script.value.startswith("opreplay.")]
    if [script.name for script in scripts] != ["opreplay"]:
        sys.exit(f"console scripts of the wheel: {scripts}")
    opreplay = str(Path(sys.executable).with_name("opreplay"))

    import opreplay as public
    from opreplay.cli.main import COMMANDS
    from opreplay.traces.samples import SAMPLES, sample_path

    if public.__version__ not in run(opreplay, "--version"):
        sys.exit(f"opreplay.__version__ is {public.__version__}")
    absent = [name for name in public.__all__ if not hasattr(public, name)]
    if absent:
        sys.exit(f"names that cannot be imported: {absent}")
    for command in COMMANDS:
        if "Usage:" not in run(opreplay, command, "--help"):
            sys.exit(f"{command} --help shows no usage")
    for name in SAMPLES:
        facts = json.loads(run(opreplay, "inspect", str(sample_path(name)), "--format", "json"))
        if not facts["cpu_ops"] or not facts["unique_ops"]:
            sys.exit(f"inspect finds no ops in {name}: {facts}")
    op = public.open(sample_path("transformer_infer"), top=3)["#1"]
    if op.measure().median_us <= 0 or op.simulate().time_us <= 0:
        sys.exit(f"an op has no time: {op}")
    if "910b3" not in run(opreplay, "devices"):
        sys.exit("the wheel does not know the device 910b3")


if __name__ == "__main__":
    main()
