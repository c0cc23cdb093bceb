"""How much there is to hold in the source: its size, its branching, its names, and in how many rooms an op is named.

    python benchmarks/code_shape.py [--worst N]

Branching counts as `ruff` C901 does (McCabe): one and each if, loop, handler, comprehension, boolean operator and case.
A function has a vague name if an argument or variable of it is called found, made, told, one, own, kept, held, given,
left, most or least. An op counts for each room in whose strings its whole name stands; docstrings are not counted.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from opreplay.replay.ops.catalog import LIBRARIES

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("cli", "initializers", "replay", "traces")
VAGUE = frozenset(["found", "made", "told", "one", "own", "kept", "held", "given", "left", "most", "least"])
OP = re.compile(r"\b(\w+)::\w+")
BRANCHES = (
    ast.If | ast.IfExp | ast.For | ast.While | ast.ExceptHandler | ast.comprehension | ast.Assert | ast.match_case
)
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
    print(f"{'lines of source':44} {lines:>8,}")
    print(f"{'files':44} {sum(1 for _ in files()):>8,}")
    print(f"{'functions':44} {total:>8,}")
    print(f"{'with branching above 10':44} {branched / total:>8.1%}")
    print(f"{'with a vague name':44} {vague / total:>8.1%}")
    print(f"{'vendor ops named':44} {len(rooms):>8,}")
    print(f"{'rooms that name one, median and most':44} {statistics.median(counts):>8.0f} {max(counts)}")
    print(f"{'ops named in one room':44} {sum(count == 1 for count in counts):>8,}")
    for number, place in sorted(complexity, reverse=True)[:worst]:
        print(f"{number:4} {place}")


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="print the N functions that branch most")
    measure(parser.parse_args().worst)


if __name__ == "__main__":
    main()
