"""How many of the planted defects `opreplay check` finds: each op of tests/replay/check/planted.py has one.

    python benchmarks/check_defects.py [--here] [--only NAME] [--from N] [--json FILE]

A defect is found when one of the points that show it fails or is missing, with the case; points beyond those that fail
as well are listed. `--here` checks in this process, all but the ops that crash it: faster, the same verdicts.

Bar: 58 of 60 planted defects found.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from opreplay.initializers.user_code import load_user_code, user_module
from opreplay.replay.check.model import POINTS
from opreplay.replay.session.checking import check

PLANTED = Path(__file__).parent.parent / "tests" / "replay" / "check" / "planted.py"
NEVER = ("speed", "in-place, out=", "CPU fallback", "autocast", "ONNX export", "vmap", "asynchrony")
"""Points that few planted defects are about: tried for these alone."""


def planted() -> Any:
    """The module with the ops, loaded as a check loads it."""
    load_user_code(str(PLANTED), flag="--plugin")
    return user_module(PLANTED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--here", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for defect in planted().DEFECTS[options.first :]:
        if options.only not in defect.op:
            continue
        alone = not options.here or defect.kind == "bad input"
        started = time.perf_counter()
        report = check(
            defect.op,
            against=defect.against,
            shapes=defect.shapes,
            plugins=(str(PLANTED),) if alone else (),
            points=[point for point in POINTS if point not in NEVER or point in defect.points],
            isolation="process" if alone else "none",
        )
        bad = {checked.point: checked for checked in report.points if checked.verdict in ("fail", "missing")}
        shown = next((bad[point] for point in defect.points if point in bad), None)
        others = [point for point in bad if point not in defect.points and bad[point].verdict == "fail"]
        row = {
            "op": defect.op.rpartition("/")[2],
            "kind": defect.kind,
            "found": shown is not None,
            "point": None if shown is None else shown.point,
            "case": None if shown is None else shown.cases[0].case,
            "detail": None if shown is None else shown.cases[0].detail,
            "others": others,
            "seconds": round(time.perf_counter() - started, 1),
        }
        rows.append(row)
        print(
            f"{'found ' if shown else 'MISSED'} {row['kind']:12} {row['op']:32} {row['point'] or '':16} "
            f"{(row['detail'] or '')[:90]}  {', '.join(others)} ({row['seconds']} s)",
            flush=True,
        )
    print(f"{sum(row['found'] for row in rows)} of {len(rows)} found")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
