"""What opreplay says of every op of the public traces, to a file; and where it now says something else.

    PYTHONPATH=. python benchmarks/predictions.py --write FILE [--traces DIR_OR_FILES ...] [--soc NAME]
    PYTHONPATH=. python benchmarks/predictions.py --against FILE ...

For each op of each plan: how it is resolved or why not, what was assumed, which initializer fills its arguments, the
contents that these get, the kernels of its prediction and its time. For each op with a reference implementation beside:
its initializers and the kernels of calls by its schemas. A redesign leaves the file equal; times within 1e-9.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from opreplay.replay.ascend import load_device, lower, simulate_op
from opreplay.replay.ops.inputs import open_registry
from opreplay.replay.plan.build import build_plan
from opreplay.replay.plan.opaque_layers import with_layers
from opreplay.replay.resolve.meta.outputs import with_outputs
from opreplay.traces import read_trace
from opreplay.traces.errors import TraceError

ROOT = Path(__file__).resolve().parents[1]
TRACES = (ROOT.parent / "shared" / "traces", ROOT / "traces" / "samples")
Rows = dict[str, dict[str, Any]]


def files(named: list[Path]) -> list[Path]:
    """The traces that files and folders mean."""
    return [file for path in named for file in (sorted(path.glob("*.json*")) if path.is_dir() else [path])]


def of_traces(paths: list[Path], soc: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(trace and op, facts) of every op of every plan."""
    from opreplay.replay.ops.work.expected import ExpectedContents

    device = load_device(soc)
    for path in paths:
        try:
            plan = with_outputs(with_layers(build_plan(read_trace(path))))
        except TraceError as error:
            yield path.name, {"error": str(error)}
            continue
        contents = ExpectedContents(open_registry())
        for op in plan.ops:
            amounts = contents(op)
            simulated = simulate_op(op, device, contents=amounts)
            yield (
                f"{path.name} {op.id}",
                {
                    "op": op.name,
                    "resolved": op.resolved_by,
                    "via": op.via,
                    "reason": msgspec.to_builtins(op.reason),
                    "assumptions": msgspec.to_builtins(op.assumptions),
                    "outputs": msgspec.to_builtins(op.outputs),
                    "contents": msgspec.to_builtins(amounts),
                    "kernels": msgspec.to_builtins(lower(op, amounts).kernels),
                    "simulated": msgspec.to_builtins(simulated),
                },
            )


def of_references() -> Iterator[tuple[str, dict[str, Any]]]:
    """(op, facts) of every op with a reference implementation."""
    from tests.replay.ops.costs.vendor.test_every_stand_in import NAMES, of_schema, versions_of

    registry = open_registry()
    for name in NAMES:
        rules = [type(rule).__name__ for rule in registry.rules_for(name)]
        kernels = [
            msgspec.to_builtins(lower(of_schema(name, text, shape, "bfloat16")).kernels)
            for _, text in versions_of(name)
            for shape in ((64, 128), (2, 8, 16, 32))
        ]
        yield name, {"initializers": rules, "kernels": kernels}


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Where two values differ, numbers by more than 1e-9."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from differences(before.get(key), after.get(key), f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from differences(old, new, f"{path}[{place}]")
    elif isinstance(before, float) and isinstance(after, float):
        if not math.isclose(before, after, rel_tol=1e-9, abs_tol=1e-12):
            yield f"{path}: {before} → {after}"
    elif before != after:
        yield f"{path}: {str(before)[:90]} → {str(after)[:90]}"


def compare(before: Rows, after: Rows) -> int:
    """Print every row that differs; the number of them."""
    changed = 0
    for key in sorted({*before, *after}):
        lines = list(differences(before.get(key), after.get(key)))
        changed += bool(lines)
        for line in lines[:4]:
            print(f"{key} {(after.get(key) or before.get(key) or {}).get('op', '')}{line}")
    print(f"{changed} of {len(before)} rows differ")
    return changed


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", nargs="*", type=Path, default=[path for path in TRACES if path.is_dir()])
    parser.add_argument("--soc", default="910b3")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--against", type=Path)
    args = parser.parse_args()
    rows: Rows = json.loads(json.dumps(dict(of_references()) | dict(of_traces(files(args.traces), args.soc))))
    if args.write:
        args.write.write_text(json.dumps(rows), encoding="utf-8")
        print(f"{len(rows)} rows in {args.write}")
    if args.against:
        sys.exit(bool(compare(json.loads(args.against.read_text(encoding="utf-8")), rows)))


if __name__ == "__main__":
    main()
