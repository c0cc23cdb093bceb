"""What commands cost in processor time and memory, beside `import torch` and `orjson.loads` of the same trace.

    python benchmarks/startup.py [--runs 3] [--trace TRACE] [--only NAME]

Each line runs in fresh processes, the second run of a command with what the first one kept. CPU seconds are those of
the process and its children, user and system, the least of all runs; the memory is the peak of the largest process.
Bytecode is compiled before. Bars, in CPU seconds: `--help` 0.15, neither torch nor pandas; the first `plan` 0.9 beyond
`import torch`; `open().frame()` 0.9 and a second `plan` or `simulate` 0.6 in all.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from opreplay.traces.samples import sample_path

COMMAND = "from opreplay.cli.main import main; main()"
MEASURED = """
import atexit, os, resource, sys
def tell():
    times, kinds = os.times(), (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    peak_kb = max(resource.getrusage(kind).ru_maxrss for kind in kinds)
    loaded = [name for name in ("torch", "pandas") if name in sys.modules]
    own = sum(name.startswith("opreplay.") for name in sys.modules)
    with open(os.environ["STARTUP_FACTS"], "w") as file:
        print(sum(times[:4]), peak_kb, own, *loaded, file=file)
atexit.register(tell)
"""
CONFIG = """{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896,
"intermediate_size": 4864, "num_attention_heads": 14, "num_key_value_heads": 2,
"num_hidden_layers": 24, "vocab_size": 151936}"""
Figures = tuple[float, float, str]
"""CPU seconds, peak megabytes, and what was loaded."""


def programs(trace: str, config: str) -> dict[str, tuple[str, list[str]]]:
    """Return the Python code and its arguments for each line; a command that keeps something has a second line."""
    quick = ["run", str(sample_path("transformer_infer")), "--quick", "--top", "20"]
    return {
        "import torch": ("import torch", []),
        "orjson.loads": ("import gzip, orjson, sys; orjson.loads(gzip.open(sys.argv[1]).read())", [trace]),
        "--help": (COMMAND, ["--help"]),
        "run --help": (COMMAND, ["run", "--help"]),
        "list devices": (COMMAND, ["list", "devices"]),
        "inspect": (COMMAND, ["inspect", trace]),
        "timeline": (COMMAND, ["timeline", trace]),
        "open().frame()": ("import opreplay, sys; opreplay.open(sys.argv[1]).frame()", [trace]),
        "plan": (COMMAND, ["plan", trace]),
        "simulate": (COMMAND, ["simulate", trace]),
        "run --quick of 20 ops": (COMMAND, quick),
        "capture hf:CONFIG": (COMMAND, ["capture", f"hf:{config}", "--phase", "decode", "--batch", "4"]),
    }


TWICE = ("plan", "simulate")


def figures(code: str, arguments: list[str], folder: str) -> Figures:
    """Run code in a fresh process, with `folder` for what it keeps."""
    facts = os.path.join(folder, "facts")
    environment = {**os.environ, "XDG_CACHE_HOME": folder, "STARTUP_FACTS": facts}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-W", "ignore", "-c", MEASURED + code, *arguments]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    seconds, peak_kb, own, *loaded = Path(facts).read_text().split()
    return float(seconds), int(peak_kb) / 1024, f"{own:>4}  {', '.join(loaded) or 'neither'}"


def least(name: str, code: str, arguments: list[str], runs: int) -> dict[str, Figures]:
    """Return the least figures of a line, and of its second run."""
    names = (name, f"{name}, second time") if name in TWICE else (name,)
    every: dict[str, list[Figures]] = {each: [] for each in names}
    for _ in range(runs + 1):
        with tempfile.TemporaryDirectory() as folder:
            for each in names:
                every[each].append(figures(code, arguments, folder))
    # The first run may compile bytecode.
    return {each: min(values[1:]) for each, values in every.items()}


def main() -> None:
    """Print one line a command."""
    parser = argparse.ArgumentParser(description="Processor time and memory of commands.")
    parser.add_argument("--runs", type=int, default=3, help="fresh processes a line (default 3)")
    parser.add_argument("--trace", default=str(sample_path("transformer_infer")), help="default: a bundled sample")
    parser.add_argument("--only", help="lines whose name begins so")
    given = parser.parse_args()
    print(f"{'':28} {'CPU s':>7} {'MB':>6} {'own modules, torch, pandas':>28}")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(CONFIG)
        for name, (code, arguments) in programs(os.path.abspath(given.trace), str(config)).items():
            if given.only is None or name.startswith(given.only):
                for each, (seconds, peak_mb, loaded) in least(name, code, arguments, given.runs).items():
                    print(f"{each:28} {seconds:7.2f} {peak_mb:6.0f} {loaded}", flush=True)


if __name__ == "__main__":
    main()
