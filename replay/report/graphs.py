"""What captured graphs ran, and whether the recording of their capture tells of which ops, in words."""

from __future__ import annotations

from pathlib import Path

from opreplay.replay.report.text import plural, safe, time_text
from opreplay.traces.model import GraphJoin

HINT = "give the recording of the capture with --capture FILE|FOLDER"


def join_text(join: GraphJoin) -> str:
    """One line: how much device time graphs took, and how much of it has ops now."""
    ran = f"{plural(join.launches, 'graph launch').replace('launchs', 'launches')} took {time_text(join.device_us)}"
    if not join.told_launches:
        why = f"; {join.ambiguous:,} fit several captures" if join.ambiguous else ""
        looked = ", and the captures given are of other graphs" if join.sources else ""
        return f"{ran} in kernels whose ops this recording does not hold{looked}{why}: {HINT}"
    sources = ", ".join(safe(Path(source).name) for source in join.sources[:3])
    more = f" and {len(join.sources) - 3} more" if len(join.sources) > 3 else ""
    told = f"{sources}{more} told the ops of {join.told_launches:,} of them ({time_text(join.told_us)})"
    by_order = join.told_launches - join.by_name
    how = f", {by_order:,} by number and order of kernels alone" if by_order else ""
    left = join.launches - join.told_launches
    rest = f"; {left:,} fit no capture" if left else ""
    return f"{ran}; {told}{how}{rest}"
