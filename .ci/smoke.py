"""Uses an installed opreplay as a user would: every --help, traces read and explained, a page.

With torch, ops are run and predicted; without it, what needs it has to say how to install it.

    python -I smoke.py [--no-compiler]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

OPREPLAY = str(Path(sys.executable).with_name("opreplay"))


def run(*arguments: str, exit_code: int = 0) -> str:
    """Return what a command writes to stdout, or to stderr where it has to fail with `exit_code`."""
    done = subprocess.run([OPREPLAY, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != exit_code or "Traceback" in done.stderr:
        sys.exit(f"opreplay {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stderr if exit_code else done.stdout


def need(what: object, problem: str) -> None:
    """Exit with the problem unless `what` holds."""
    if not what:
        sys.exit(problem)


def check_names(torch: bool) -> None:
    """Check the console script, the public names and every --help."""
    from click.testing import CliRunner

    import opreplay
    from opreplay.cli.main import COMMANDS
    from opreplay.cli.main import opreplay as group

    scripts = [script for script in entry_points(group="console_scripts") if script.value.startswith("opreplay.")]
    need([script.name for script in scripts] == ["opreplay"], f"console scripts of the wheel: {scripts}")
    need(opreplay.__version__ in run("--version"), f"opreplay.__version__ is {opreplay.__version__}")
    absent = [name for name in opreplay.__all__ if (torch or name != "capture") and not hasattr(opreplay, name)]
    need(not absent, f"names that cannot be imported: {absent}")
    for command in COMMANDS:
        shown = CliRunner().invoke(group, [command, "--help"])
        need(shown.exit_code == 0 and "Usage:" in shown.output, f"{command} --help shows no usage")


def check_reading(page: Path) -> None:
    """Check what only reads traces, from the terminal and from Python, and a page."""
    import opreplay
    from opreplay.traces.reading.native.blocks import compiled_scanner
    from opreplay.traces.samples import SAMPLES, sample_path

    need(compiled_scanner() or "--no-compiler" in sys.argv, "the trace reader is not compiled")
    for name in SAMPLES:
        facts = json.loads(run("inspect", str(sample_path(name)), "--format", "json"))
        need(facts["cpu_ops"] and facts["unique_ops"], f"inspect finds no ops in {name}: {facts}")
    run("timeline", str(sample_path("cnn_train")), "--advise", "--output", str(page))
    need("Bokeh" in page.read_text(encoding="utf-8"), "the page has no plots")
    trace = sample_path("transformer_infer")
    need(opreplay.timeline(trace).critical_path.frame().size, "the critical path is empty")
    need("910b3" in run("list", "devices"), "the wheel does not know the device 910b3")


def check_torch(page: Path) -> None:
    """Check that ops are resolved, run and predicted."""
    import opreplay
    from opreplay.traces.samples import sample_path

    trace = str(sample_path("transformer_infer"))
    few = ("--top", "5")
    need("aten::linear" in run("plan", trace, *few), "plan shows no op")
    need("910b3" in run("simulate", trace, "--soc", "910b3"), "simulate names no device")
    run("run", trace, *few, "--quick", "--soc", "910b3", "--output", str(page), "--force")
    need("Bokeh" in page.read_text(encoding="utf-8"), "the page of run has no plots")
    need("910b3" in run("op", "aten::mm(bf16[64,64], bf16[64,n])", "--vary", "n=8,64", "--soc", "910b3"), "op fails")
    op = opreplay.open(trace, top=3)["#1"]
    need(op.measure().median_us > 0 and op.simulate().time_us > 0, f"an op has no time: {op}")


def check_refusals() -> None:
    """Check that what needs torch says how to install it."""
    from opreplay.traces.samples import sample_path

    trace = str(sample_path("moe_block"))
    for arguments in (("plan", trace), ("run", trace), ("simulate", trace), ("check", "aten::mm")):
        said = run(*arguments, exit_code=4)
        need("pip install 'torch>=" in said, f"opreplay {arguments[0]} without torch: {said}")


def main() -> None:
    """Exit with a message at the first thing that fails; else print which torch was there."""
    torch = find_spec("torch") is not None
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        check_names(torch)
        check_reading(page)
        if torch:
            check_torch(page)
        else:
            check_refusals()
    version = __import__("torch").__version__ if torch else "none"
    print(f"Python {sys.version.split()[0]}, torch {version}: works")


if __name__ == "__main__":
    main()
