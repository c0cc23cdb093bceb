# pyright: strict
"""Decide whether two runs may be compared: which facts and options must agree, and which differences are only noted."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from opreplay.replay.host.idle import is_busy
from opreplay.replay.results.records import Header

MUST_AGREE: dict[str, str] = {
    "cpu": "another processor",
    "machine": "another architecture",
    "cpus": "another number of processors",
    "device": "another device",
    "device_name": "another device",
    "threads": "another number of threads",
    "cpu_capability": "other vector instructions",
    "cache_bytes": "another cache",
    "governor": "another frequency governor",
    "boost": "boost clocks in one run only",
}
"""Environment fact that must agree → what a difference means. Times would compare two machines, not two versions."""

NOTED: tuple[str, ...] = (
    "opreplay",
    "torch",
    "python",
    "system",
    "cuda",
    "hip",
    "mkldnn",
    "memory_bytes",
    "beside_another_job",
)
"""Facts that may differ between compared runs: a comparison shows what a new version costs."""

OPTIONS_MUST_AGREE: dict[str, str] = {
    "mode": "one run measured single ops, the other a sequence",
    "cache": "cold and warm caches",
    "executor": "another executor",
    "lanes": "another number of ops in parallel",
    "values": "other argument values",
}
"""Option that must agree → what a difference means."""

OPTIONS_NOTED: tuple[str, ...] = ("seed", "op_time_s", "isolation")

WERE_ALWAYS: dict[str, object] = {"mode": "unique"}
"""Option that older files lack → value with which the runs in these files were measured."""

OVERLOADED = 1.0
"""If the load per processor at the start of a run exceeds this, a note says so."""

ONCE = (
    "each op was measured in one block on a busy machine: intervals do not cover changes of the machine's load, so the "
    "same code may take 1.5 times as long or more; measure both runs with `--set repeats=8`"
)
"""Note on runs whose intervals do not include the variation over time."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One fact in which two runs differ."""

    name: str
    before: str
    after: str
    meaning: str = ""
    blocking: bool
    """Whether the difference forbids the comparison."""

    def __str__(self) -> str:
        text = f"{self.name}: {self.before} → {self.after}"
        return f"{text} ({self.meaning})" if self.meaning else text


def differences(before: Header, after: Header) -> tuple[Difference, ...]:
    """Return the facts that differ, blocking ones first. A fact that one run lacks is ignored."""
    return (
        *_between(before.environment, after.environment, MUST_AGREE, blocking=True),
        *_between(WERE_ALWAYS | before.options, WERE_ALWAYS | after.options, OPTIONS_MUST_AGREE, blocking=True),
        *_between(before.environment, after.environment, dict.fromkeys(NOTED, ""), blocking=False),
        *_between(before.options, after.options, dict.fromkeys(OPTIONS_NOTED, ""), blocking=False),
        *_between(before.trace, after.trace, {"source": ""}, blocking=False),
    )


def load_notes(before: Header, after: Header) -> tuple[str, ...]:
    """Return notes on which run started on a busy machine, and whether each op was measured only once."""
    notes: list[str] = []
    measured_once = False
    for which, header in (("first", before), ("second", after)):
        load, cpus = header.environment.get("load_1min"), header.environment.get("cpus")
        loaded = isinstance(load, int | float) and isinstance(cpus, int) and load > OVERLOADED * cpus
        if loaded:
            notes.append(f"the {which} run started under a load of {load:g} on {cpus} processors")
        measured_once |= (loaded or is_busy(header.environment)) and header.environment.get("visits") == 1
    return (*notes, ONCE) if measured_once else tuple(notes)


def _between(
    before: Mapping[str, object], after: Mapping[str, object], meanings: Mapping[str, str], *, blocking: bool
) -> list[Difference]:
    return [
        Difference(name=name, before=str(before[name]), after=str(after[name]), meaning=meaning, blocking=blocking)
        for name, meaning in meanings.items()
        if name in before and name in after and before[name] != after[name]
    ]
