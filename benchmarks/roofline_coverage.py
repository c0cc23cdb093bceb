"""The roofline of public traces: how much of the device time has operations, bytes and a share of the peak.

    python benchmarks/roofline_coverage.py ../shared/traces

For each trace with device work: the share of the time with all three numbers, of it without communication and copies
over the link to the host, the rows above 105 % of the peak that give no reason (a count that is wrong), the share of
the device time in the default table of `inspect`, and the heaviest row without numbers with its reason. Graph traces
are joined with captures beside them. Exits with 1 if a trace of a server whose ops and shapes are recorded is below
85 %, a row is above the peak without a doubt, or a default table holds less than 90 % of the time.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from opreplay.replay.ops.recorded.roofline import COPY_OVER_LINK, DOUBTFUL, Roofline, roofline
from opreplay.replay.ops.recorded.sizes import COMMUNICATION
from opreplay.replay.report.table import ROWS_SHOWN
from opreplay.traces import Trace, read_trace, summarize
from opreplay.traces.errors import TraceError
from opreplay.traces.joins.graph_capture import with_captures_in_folder
from opreplay.traces.joins.launch_grids import with_launch_grids
from opreplay.traces.limits import Limits

LEAST_COMPLETE = 0.85
LEAST_SHOWN = 0.9
SERVERS = ("vllm", "sglang")


def shown_share(trace: Trace) -> float:
    """Return the share of the device time in the rows of `inspect`'s first table."""
    summary = summarize(trace)
    if summary.top_kernels:
        return sum(row.share for row in summary.top_kernels[:ROWS_SHOWN])
    return sum(op.device_us for op in summary.top_ops[:ROWS_SHOWN]) / summary.device_time_us


def unexplained(table: Roofline) -> int:
    """Count the rows above the peak that say no reason."""
    return sum((row.peak_share or 0.0) > DOUBTFUL and not row.assumed for row in table.rows)


def judge(path: Path) -> bool:
    """Print a line for one trace; return whether it meets the bars."""
    try:
        trace = read_trace(path)
    except TraceError:
        return True
    if not len(trace.kernels):
        return True
    shown = shown_share(trace)
    graphs = trace.graphs is not None
    if graphs:
        trace = with_captures_in_folder(trace, Limits())
    table = roofline(with_launch_grids(trace, Limits()))
    elsewhere = sum(row.share for row in table.rows if row.why in (COMMUNICATION, COPY_OVER_LINK))
    known, wrong = table.complete_share, unexplained(table)
    compute = known / (1.0 - elsewhere) if elsewhere < 1.0 else 1.0
    missing = max((row for row in table.rows if not row.is_complete), key=lambda row: row.share, default=None)
    text = "" if missing is None else f"{missing.share:6.1%} {missing.name[:40]}: {missing.why}"
    name = path.name.removesuffix(".json.gz")
    print(f"{name:36} {known:7.1%} {compute:7.1%} {wrong:3} {shown:7.1%}  {text}")
    served = any(word in name for word in SERVERS) and "capture" not in name
    return not wrong and (known >= LEAST_COMPLETE or not served) and (shown >= LEAST_SHOWN or not graphs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    print(f"{'trace':36} {'all 3':>7} {'compute':>7} {'>1':>3} {'shown':>7}  heaviest row without")
    good = [judge(path) for path in sorted(folder.glob("*.json.gz"))]
    print("met" if all(good) else "MISSED")
    return 0 if all(good) else 1


if __name__ == "__main__":
    raise SystemExit(main())
