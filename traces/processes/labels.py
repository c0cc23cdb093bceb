# pyright: strict
"""Match the process ids of device rows to those of host rows by the text of labels that a merging tool added."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

_TOKEN = re.compile(r"[^\W\d_]+|\d+")
_WHOLE = re.compile(r"\d{1,18}")
LEAST_OFFSET = 1000
"""Minimum gap between offsets that a tool adds for ranks; device ids of one process are closer together."""


def match_labels(hosts: Sequence[str], others: Sequence[str]) -> Mapping[str, str]:
    """Return, for each device id, the host id with the same label. A device id that matches none or several is left
    out.

    A label is a prefix ("[TP00] 100" and "[TP00] 0"), a suffix ("100_rank1" and "0_rank1") or an offset (1000100 and
    1000000). It is the whole id if a tool gave all events of a process the same id.
    """
    if set(others) == set(hosts):
        return {other: other for other in others}
    matched: dict[str, str] = {}
    tokens = {host: _tokens(host) for host in hosts}
    for other in others:
        shared = {host: _shared_label(tokens[host], _tokens(other)) for host in hosts}
        most = max(shared.values(), default=0)
        best = [host for host, count in shared.items() if count == most]
        if most and len(best) == 1:
            matched[other] = best[0]
    return matched or _match_offsets(hosts, others)


def label_of(text: str) -> str:
    """Return the text without its last number: "[TP00] " for "[TP00] 100"."""
    return re.sub(r"\d+\D*$", "", text)


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


def _shared_label(host: list[str], other: list[str]) -> int:
    """Return the number of leading or trailing tokens that two ids share; 0 if either has fewer than two tokens."""
    if len(host) < 2 or len(other) < 2:
        return 0
    return max(_common(host, other), _common(host[::-1], other[::-1]))


def _common(first: list[str], second: list[str]) -> int:
    pairs = list(zip(first, second, strict=False))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))


def _match_offsets(hosts: Sequence[str], others: Sequence[str]) -> Mapping[str, str]:
    """Map device ids to host ids if all are numbers to which a tool added an offset per process."""
    if len(hosts) < 2 or not all(_WHOLE.fullmatch(text) for text in (*hosts, *others)):
        return {}
    wanted = sorted(int(text) for text in others)
    lumps: list[list[int]] = []
    for number in wanted:
        if not lumps or number - lumps[-1][-1] >= LEAST_OFFSET:
            lumps.append([])
        lumps[-1].append(number)
    numbers = sorted(int(text) for text in hosts)
    if len(lumps) != len(numbers):
        return {}
    firsts = [lump[0] for lump in lumps]
    between = all(lump[-1] <= host for lump, host in zip(lumps, numbers, strict=True)) and all(
        host < following for host, following in zip(numbers, firsts[1:], strict=False)
    )
    apart = [host - first for host, first in zip(numbers, firsts, strict=True)]
    gap = min(second - first for first, second in pairwise(firsts))
    if not between and 2 * (max(apart) - min(apart)) >= gap:
        return {}
    return {str(other): str(host) for lump, host in zip(lumps, numbers, strict=True) for other in lump}
