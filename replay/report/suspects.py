# pyright: strict
"""Lines at the top of a report on rows with contradictory times, and on recorded times that cannot be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from rich.console import RenderableType
from rich.text import Text

from opreplay.replay.report.text import plural, quotient, safe, share_text, time_text
from opreplay.replay.results.records import Header, OpResult
from opreplay.replay.results.suspects import LARGE_SHARE, kind_of_device, suspects

MARK = "!"
SHOWN = 8
"""Maximum number of rows listed; files list all."""


def lines(results: Sequence[OpResult]) -> list[str]:
    """Return one line per suspect row.

    Example: "! aten::mm (0123abcd), 12.3 % of the time, ...: 910b3 ÷ recorded is 5e-05: ..."
    """
    rows = suspects(results)
    simulated_us = Counter[str]()
    for r in results:
        simulated_us.update({soc: predicted.time_us * r.count for soc, predicted in r.simulated.items()})
    texts = [
        f"{MARK} {safe(r.name)} ({r.id[:8]}), {share_text(r.recorded_share)} of the time, recorded {_recorded(r)}"
        f"{_of_totals(r, simulated_us)}: {safe('; '.join(r.suspicions))}"
        for r in rows[:SHOWN]
    ]
    if len(rows) > SHOWN:
        texts.append(f"{MARK} and {plural(len(rows) - SHOWN, 'more row')} of this kind")
    return [*texts, *_filled_at_random(results)]


def _of_totals(r: OpResult, simulated_us: Mapping[str, float]) -> str:
    """Return the row's share of each device's total, for devices where it is large enough to affect the total."""
    shares = {
        soc: quotient(predicted.time_us * r.count, simulated_us[soc]) or 0.0 for soc, predicted in r.simulated.items()
    }
    large = [f"{share_text(share)} of {safe(soc)}'s total" for soc, share in shares.items() if share >= LARGE_SHARE]
    return f", {' and '.join(large)}" if large else ""


def _recorded(r: OpResult) -> str:
    on_device = r.recorded_device_us is not None
    return time_text(r.recorded_device_us) if on_device else f"{time_text(r.recorded_host_us)} on the host"


def _filled_at_random(results: Sequence[OpResult]) -> list[str]:
    """Return one line per op whose amount of work depends on arguments that were filled at random."""
    arguments: dict[str, dict[str, None]] = {}
    for r in results:
        if r.status == "replayed" and r.filling is not None and r.filling.at_random:
            arguments.setdefault(r.name, {}).update(dict.fromkeys(r.filling.at_random))
    texts = [
        f"{MARK} {safe(name)}: {safe(', '.join(names))} {'are' if len(names) > 1 else 'is'} filled at random; "
        "write an initializer (docs/initializers.md)"
        for name, names in list(arguments.items())[:SHOWN]
    ]
    rest = len(arguments) - len(texts)
    return [*texts, f"{MARK} and {plural(rest, 'more op')} of this kind"] if rest else texts


def rendered(texts: Iterable[str]) -> list[RenderableType]:
    """Return the lines as yellow text for a terminal, after an empty line; nothing if there are no lines."""
    parts: list[RenderableType] = [Text(text, style="yellow", overflow="fold") for text in texts]
    return [Text(), *parts] if parts else []


def not_comparable(header: Header | None) -> str | None:
    """Return a line if recorded and measured times are from different kinds of devices; otherwise None."""
    if header is None:
        return None
    trace, device = header.trace, header.options.get("device")
    total, unowned = trace.get("device_us_total"), trace.get("unowned_device_us")
    if not isinstance(total, int | float) or not isinstance(device, str):
        return None
    on_cpu, recorded = kind_of_device(device) == "cpu", safe(str(trace.get("device") or "an accelerator"))
    if total > 0:
        return f"times are not comparable: recorded on {recorded}, replayed on a CPU" if on_cpu else None
    if isinstance(unowned, int | float) and unowned > 0:
        return f"times are not comparable: the recording on {recorded} has only host times of each op, not device times"
    if cast("Mapping[str, object]", trace.get("where") or {}).get("cut"):
        return "times may not be comparable: the file was cut short, perhaps before its device work"
    if trace.get("host_us_total") and not on_cpu:
        return f"times are not comparable: recorded on a CPU, replayed on {safe(device)}"
    return None
