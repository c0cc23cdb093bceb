"""How much there is to hold in the source: its size, its branching, its names, in how many rooms an op is named, and
how far a trace goes until it is a report.

    python benchmarks/code_shape.py [--worst N]

Functions that run and modules that are loaded are those of `opreplay run SAMPLE --soc 910b3` in a fresh interpreter,
without the processes that it starts. A form of a call is one of `FORMS` whose text still stands in its room.
Parameters of public functions are options that users type, and those of a tile program are the arguments of its kernel:
both are counted apart.
Branching counts as `ruff` C901 does (McCabe): one and each if, loop, handler, comprehension, boolean operator and case.
A function has a vague name if an argument or variable of it is called found, made, told, one, own, kept, held, given,
left, most or least. An op counts for each room in whose strings its whole name stands; docstrings are not counted.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from opreplay.replay import public, tile
from opreplay.replay.ops.catalog import LIBRARIES

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("cli", "initializers", "replay", "traces")
MOST_PARAMETERS = 8
VAGUE = frozenset(["found", "made", "told", "one", "own", "kept", "held", "given", "left", "most", "least"])
OP = re.compile(r"\b(\w+)::\w+")
BRANCHES = (
    ast.If | ast.IfExp | ast.For | ast.While | ast.ExceptHandler | ast.comprehension | ast.Assert | ast.match_case
)
SAMPLE = "transformer_infer"
STAGES = ("open_input", "plan_of", "on_ranks", "expected_contents", "run_sequence", "view")
"""Functions that `replay/job/` calls one after the other, by name; `PLACES` says where those with common names are."""
PLACES = {"open_input": "replay/plan", "plan_of": "replay/plan", "view": "replay/report/run/report.py"}
FORMS = {
    "event": ("traces/reading", r"class Op\("),
    "row of columns": ("traces/reading", "class Columns"),
    "signature": ("traces/model.py", "class OpSignature"),
    "recorded argument": ("replay/ir", "class RecordedArg"),
    "op, resolved or not": ("replay/ir", "class ReplayOp"),
    "argument of an op": ("replay/ir", "class ReplayArg"),
    "match": ("replay/resolve", "class Match"),
    "arguments by name": ("replay/ir", r"class Call\("),
    "view for costs": ("replay/ops", "class OpView"),
    "kernel": ("replay/ir", "class KernelCall"),
    "prediction": ("replay/results", "class Simulated"),
    "task": ("replay/execute", "class Task"),
    "view for initializers": ("initializers", "class InitContext"),
    "prepared call": ("replay/execute", "class TorchPrepared"),
    "outcome": ("replay/results", "class Outcome"),
    "result": ("replay/results", "class OpResult"),
    "text of a terminal": ("replay/report", "from rich.text import Text"),
}
"""What a call is between the file and the table: (room, pattern of the line that makes it so)."""
RUN = """
import json, os, sys, threading
codes = set()
def called(frame, event, arg):
    if event == "call":
        codes.add(frame.f_code)
threading.setprofile(called), sys.setprofile(called)
from opreplay.cli.main import opreplay
try:
    opreplay(sys.argv[2:])
except SystemExit as stop:
    assert not stop.code, stop.code
sys.setprofile(None)
ran = sorted({(os.path.realpath(code.co_filename), code.co_firstlineno, code.co_name) for code in codes})
names = [getattr(module, "__file__", None) for name, module in sys.modules.items() if name.startswith("opreplay")]
with open(sys.argv[1], "w") as file:
    json.dump({"ran": ran, "loaded": [os.path.realpath(name) for name in names if name]}, file)
"""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def files() -> Iterator[Path]:
    """The Python source, tests and benchmarks apart."""
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.py"))


def functions(tree: ast.AST) -> Iterator[Function]:
    """All functions of a file, those inside of others too."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def inside(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions inside."""
    waiting: list[ast.AST] = [*ast.iter_child_nodes(function)]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function):
            waiting += ast.iter_child_nodes(node)


def branching(function: Function) -> int:
    """McCabe's number of a function."""
    nodes = list(inside(function))
    branches = sum(isinstance(node, BRANCHES) for node in nodes)
    return 1 + branches + sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))


def is_vague(function: Function) -> bool:
    """Whether an argument or variable has a name that says nothing."""
    names = {node.id for node in inside(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return bool(VAGUE & (names | {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}))


def room_of(path: Path) -> str:
    """The room that a file lies in."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:2]) if parts[0] == "replay" else parts[0]


def ops_in(tree: ast.AST) -> set[str]:
    """Vendors' ops whose whole name stands in a string of a file, docstrings apart."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    found_in = (OP.finditer(str(node.value)) for node in texts if id(node) not in prose)
    return {match[0] for matches in found_in for match in matches if match[1] in LIBRARIES}


def measure(worst: int) -> None:
    """Print the figures, and the functions that branch most."""
    lines = 0
    complexity: list[tuple[int, str]] = []
    vague = 0
    rooms: dict[str, set[str]] = defaultdict(set)
    for path in files():
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        lines += text.count("\n")
        for function in functions(tree):
            complexity.append((branching(function), f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"))
            vague += is_vague(function)
        for op in ops_in(tree):
            rooms[op].add(room_of(path))
    total = len(complexity)
    branched = sum(number > 10 for number, _ in complexity)
    counts = [len(names) for names in rooms.values()]
    print(f"{'lines of source':52} {lines:>8,}")
    print(f"{'files':52} {sum(1 for _ in files()):>8,}")
    print(f"{'functions':52} {total:>8,}")
    print(f"{'with branching above 10':52} {branched / total:>8.1%}")
    print(f"{'with a vague name':52} {vague / total:>8.1%}")
    print(f"{'vendor ops named':52} {len(rooms):>8,}")
    print(f"{'rooms that name one, median and most':52} {statistics.median(counts):>8.0f} {max(counts)}")
    print(f"{'ops named in one room':52} {sum(count == 1 for count in counts):>8,}")
    for number, place in sorted(complexity, reverse=True)[:worst]:
        print(f"{number:4} {place}")


def lines_of(paths: Iterable[Path]) -> int:
    """Lines of files together."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def one_run() -> tuple[int, int, list[Path]]:
    """(files in which a function ran, lines of these functions, own modules loaded) of the command."""
    with tempfile.TemporaryDirectory() as folder:
        facts = Path(folder) / "facts.json"
        sample = ROOT / "traces" / "samples" / f"{SAMPLE}.json.gz"
        command = ["run", str(sample), "--soc", "910b3", "--set", "op_time=1ms", "--set", "visits=1"]
        environment = {**os.environ, "XDG_CACHE_HOME": folder}
        subprocess.run(
            [sys.executable, "-c", RUN, str(facts), *command], env=environment, stdout=subprocess.DEVNULL, check=True
        )
        found = json.loads(facts.read_text())
    ran: dict[Path, set[tuple[int, str]]] = defaultdict(set)
    for name, line, function in found["ran"]:
        ran[Path(name)].add((line, function))
    counts = [lines_that_ran(path, called) for path, called in ran.items() if path in set(files())]
    return (
        sum(count > 0 for count in counts),
        sum(counts),
        [Path(name) for name in found["loaded"] if name.endswith(".py")],
    )


def lines_that_ran(path: Path, called: set[tuple[int, str]]) -> int:
    """Lines of the functions of a file that were called, each line once."""
    spans: set[int] = set()
    for function in functions(ast.parse(path.read_text(encoding="utf-8"))):
        first = min(line.lineno for line in (function, *function.decorator_list))
        if (first, function.name) in called:
            spans |= set(range(function.lineno, (function.end_lineno or function.lineno) + 1))
    return len(spans)


def callers(name: str, trees: dict[Path, ast.Module]) -> int:
    """Count the calls of a function of this name outside of `replay/job/` and `replay/capture/`."""
    return sum(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
        for path, tree in trees.items()
        if not in_room(path, "replay/job") and not in_room(path, "replay/capture")
        for node in ast.walk(tree)
    )


def in_room(path: Path, room: str) -> bool:
    """Whether a file is or lies in `room`, a path below the root."""
    return path.is_relative_to(ROOT / room)


def is_typed_by_users(path: Path, function: Function) -> bool:
    """Check whether users name the parameters of a function: a public name of `opreplay`, or of `tile`'s programs."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    name = function.name
    return (
        (name in public.__all__ and public._HOMES[name] == module)
        or (name in tile.__all__ and getattr(tile, name).__module__ == f"opreplay.{module}")
        or any(ast.unparse(decorator).startswith("tile.kernel") for decorator in function.decorator_list)
    )


def parameters(function: Function) -> int:
    """Parameters of a function, `self` and `cls` apart."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in every)


def print_way_through(worst: int) -> None:
    """Print the figures of the way from a trace to a report, and the functions with most parameters."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files()}
    ran_files, ran_lines, loaded = one_run()
    print(f"{'files, lines of functions that a run executes':52} {ran_files:>8,} {ran_lines:>8,}")
    print(f"{'own modules that it loads, their lines':52} {len(loaded):>8,} {lines_of(loaded):>8,}")
    job = sorted((ROOT / "replay" / "job").rglob("*.py"))
    stages = [
        (function.end_lineno or function.lineno) - function.lineno + 1
        for path, tree in trees.items()
        for function in functions(tree)
        if function.name in STAGES and in_room(path, PLACES.get(function.name, "replay"))
    ]
    print(f"{'lines, modules of replay/job and of its stages':52} {lines_of(job) + sum(stages):>8,} {len(job):>8,}")
    for name in ("plan_of", "OpPredictor", "run_events"):
        print(f"{f'callers of {name} outside of job':52} {callers(name, trees):>8,}")
    texts = {path: path.read_text(encoding="utf-8") for path in trees}
    forms = [
        name
        for name, (room, pattern) in FORMS.items()
        if any(in_room(path, room) and re.search(pattern, text) for path, text in texts.items())
    ]
    print(f"{'forms of a call':52} {len(forms):>8,}")
    long = [
        (path, function)
        for path, tree in trees.items()
        for function in functions(tree)
        if not in_room(path, "cli") and parameters(function) > MOST_PARAMETERS
    ]
    many = sorted(
        (parameters(function), f"{path.relative_to(ROOT)}:{function.lineno} {function.name}")
        for path, function in long
        if not is_typed_by_users(path, function)
    )
    print(f"{f'functions outside of cli with over {MOST_PARAMETERS} parameters':52} {len(many):>8,}")
    print(f"{'the same, named by users':52} {len(long) - len(many):>8,}")
    print(f"{'lines of tests and benchmarks':52} {lines_of(tests()):>8,}")
    print(f"{'bytes of CHANGELOG.md':52} {(ROOT / 'CHANGELOG.md').stat().st_size:>8,}")
    for number, place in reversed(many[len(many) - min(worst, len(many)) :]):
        print(f"{number:4} {place}")


def tests() -> Iterator[Path]:
    """The Python source of tests and benchmarks, independent formulas of references apart."""
    for folder in ("tests", "benchmarks"):
        yield from (path for path in sorted((ROOT / folder).rglob("*.py")) if "formulas" not in path.parts)


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--worst",
        type=int,
        default=0,
        metavar="N",
        help="print the N functions that branch most, and have most parameters",
    )
    worst = parser.parse_args().worst
    measure(worst)
    print_way_through(worst)


if __name__ == "__main__":
    main()
