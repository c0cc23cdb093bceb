# pyright: strict
"""Match the collectives of several ranks of one job.

This aligns the clocks, finds which rank waits for which, and lists disagreements. The module takes the calls of each
rank and returns matches; it reads no files.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, product

import msgspec
import numpy as np

from opreplay.traces.arrays import Ints
from opreplay.traces.joins.matched import Clock, Disagreement, How, JobCollectives, Matched, Member
from opreplay.traces.links.collectives import PAIRED, RankCall

SAME_IN = frozenset(("all_reduce", "broadcast", "reduce", "all_gather", "gather"))
"""Kinds of collectives whose members all have the same input size."""
SAME_OUT = frozenset(("all_reduce", "reduce_scatter", "broadcast"))
TOGETHER = frozenset(("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier"))
"""Kinds of collectives that no member finishes before the last member has begun. The members therefore end almost
together, so differences between their recorded ends show differences between clocks.
"""
ENOUGH = 3
"""Minimum number of shared collectives needed to estimate the clock difference of two devices."""
MOST_SHIFTS = 4000
MOST_SPLIT = 512
_MEET = 0.9
"""Matching two ranks' calls by order requires that at least this share of them overlaps in time."""
_WRONG_SIZES = 0.1
"""Maximum share of calls with different sizes among calls matched only by order. Above it, the match is rejected."""


class RankCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The collectives that one rank ran."""

    rank: int
    calls: tuple[RankCall, ...]
    """Calls sorted by start, with times on the rank's own clock."""
    origin_ns: int = 0
    """Time on the shared clock at which the rank's clock is zero (the trace's base time)."""


Known = dict[int, tuple[RankCall, ...]]
"""Rank → its calls, with times on the shared clock."""
_Group = tuple[str | None, str | None, int]
"""(group name, members as recorded, stream if both are missing)."""


def match(ranks: Sequence[RankCalls]) -> JobCollectives:
    """Match the collectives of several ranks. Raises ValueError if two traces have the same rank.

    Within a group, calls are matched by recorded sequence number, or by order if they have no number. Recordings begin
    and end at different calls. Therefore one rank's list of calls is first shifted to bring the ends of the matched
    calls closest in time. If kinds or sizes then differ, only calls that overlap in time are matched.
    """
    numbers = [calls.rank for calls in ranks]
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"several traces have the same rank: {sorted(numbers)}")
    known = {calls.rank: _on_shared_clock(calls) for calls in sorted(ranks, key=lambda calls: calls.rank)}
    groups = (group for group in _by_group(known).values() if len(group) > 1)
    rows = [row for group in groups for row in _match_group(group, known)]
    clocks = _clocks(numbers, rows, known)
    moved = {clock.rank: round(clock.shift_us * 1e3) for clock in clocks}
    matched = sorted((_matched(row, known, moved) for row in rows), key=lambda entry: (entry.last_start_ns, entry.kind))
    return JobCollectives(
        clocks=tuple(clocks),
        matched=tuple(matched),
        disagreements=tuple(chain.from_iterable(_disagreements(at, entry, known) for at, entry in enumerate(matched))),
        unmatched=_unmatched(matched, known),
    )


def _unmatched(matched: Iterable[Matched], known: Known) -> dict[int, int]:
    """Return, for each rank, the number of calls that belong to no matched collective."""
    used = Counter(member.rank for entry in matched for member in entry.members)
    return {rank: len(calls) - used[rank] for rank, calls in known.items()}


def _on_shared_clock(calls: RankCalls) -> tuple[RankCall, ...]:
    """Return the calls of a rank with times on the shared clock."""
    origin = calls.origin_ns
    return tuple(
        msgspec.structs.replace(call, start_ns=call.start_ns + origin, end_ns=call.end_ns + origin)
        for call in calls.calls
    )


class _Row(msgspec.Struct, frozen=True):
    """The calls that form one collective, as (rank, index into the rank's calls), and how they were matched."""

    calls: tuple[tuple[int, int], ...]
    how: How


def _is_unnamed(call: RankCall) -> bool:
    """Check whether a call on a device names neither its group nor its ranks."""
    return call.group is None and call.ranks is None and call.note < 0


def _by_group(known: Known) -> dict[_Group, dict[int, list[int]]]:
    """Return the calls by group and rank, as indices in order of request.

    An unnamed group is identified by the device stream if all ranks use the same streams. A host thread does not
    identify a group.
    """
    streams = {frozenset(call.stream for call in calls if _is_unnamed(call)) for calls in known.values()}
    same = len(streams - {frozenset()}) <= 1
    out: defaultdict[_Group, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, calls in known.items():
        for at, call in enumerate(calls):
            out[call.group, call.ranks, call.stream if same and _is_unnamed(call) else -1][rank].append(at)
    return {
        key: {rank: _as_issued(places, known[rank]) for rank, places in values.items()} for key, values in out.items()
    }


def _as_issued(places: list[int], calls: Sequence[RankCall]) -> list[int]:
    """Sort the indices of calls by time of request; keep their order (by start) if a call has no such time."""
    issued = {at: calls[at].issued_ns for at in places}
    if any(when is None for when in issued.values()):
        return places
    return sorted(places, key=lambda at: (issued[at] or 0, at))


def _match_group(group: dict[int, list[int]], known: Known) -> list[_Row]:
    """Match the calls of one group: messages by order, collectives by sequence number or, without it, by order."""
    rows = _pairs(group, known)
    rest = {
        rank: [at for at in places if known[rank][at].kind not in PAIRED and known[rank][at].kind]
        for rank, places in group.items()
    }
    rest = {rank: places for rank, places in rest.items() if places}
    if len(rest) < 2:
        return rows
    if all(known[rank][at].sequence is not None for rank, places in rest.items() for at in places):
        return rows + _by_sequence(rest, known)
    return rows + _by_order(rest, known)


def _pairs(group: dict[int, list[int]], known: Known) -> list[_Row]:
    """Match the n-th send to the n-th receive if both ends name their peer and have equal numbers of messages."""
    sent: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    got: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for rank, places in group.items():
        for at in places:
            call = known[rank][at]
            if call.kind == "send" and call.target is not None:
                sent[rank, call.target].append((rank, at))
            elif call.kind == "recv" and call.source is not None:
                got[call.source, rank].append((rank, at))
    return [
        _Row((sender, receiver), "order")
        for peers in sorted(sent)
        if len(sent[peers]) == len(got[peers])
        for sender, receiver in zip(sent[peers], got[peers], strict=True)
    ]


def _by_sequence(group: dict[int, list[int]], known: Known) -> list[_Row]:
    """Match calls by sequence number. Coalesced calls share one number; they are matched by their order within it."""
    by_number: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for rank, places in group.items():
        seen: defaultdict[int, int] = defaultdict(int)
        for at in places:
            number = known[rank][at].sequence
            assert number is not None
            by_number[number, seen[number]].append((rank, at))
            seen[number] += 1
    return [_Row(tuple(calls), "sequence") for _, calls in sorted(by_number.items()) if len(calls) > 1]


def _by_order(group: dict[int, list[int]], known: Known) -> list[_Row]:
    """Match calls by their order: those of each rank with those of the rank that has the most calls."""
    longest = max(group, key=lambda rank: (len(group[rank]), -rank))
    rows: dict[int, list[tuple[int, int]]] = {at: [(longest, at)] for at in group[longest]}
    how: How = "order"
    for rank, places in sorted(group.items()):
        if rank == longest:
            continue
        shift = _shift([known[longest][at] for at in group[longest]], [known[rank][at] for at in places])
        if shift is None:
            how = "overlap"
            pairs = _overlapping(group[longest], known[longest], places, known[rank])
        else:
            low, high = max(0, shift), min(len(group[longest]), len(places) + shift)
            pairs = [(group[longest][i], places[i - shift]) for i in range(low, high)]
        for at_longest, at_rank in pairs:
            rows[at_longest].append((rank, at_rank))
    return [_Row(tuple(sorted(calls)), how) for calls in rows.values() if len(calls) > 1]


def _shift(calls: Sequence[RankCall], others: Sequence[RankCall]) -> int | None:
    """Return by how many positions to shift one rank's list of calls so that all kinds agree and the ends are closest.

    At a possible shift, nearly all known sizes must agree. Also, nearly all calls must overlap once the clocks are
    aligned by the median; otherwise calls are missing in between. Among the possible shifts, one at which the
    profiler's steps agree is preferred, then the one with the smallest median distance between ends. That distance is a
    good criterion because clocks of machines differ by milliseconds at most, and steps take longer. Return None if no
    shift is possible, which means that the calls are different.
    """
    kinds = {kind: i for i, kind in enumerate(dict.fromkeys(call.kind for call in (*calls, *others)))}
    a, b = _columns(calls, kinds), _columns(others, kinds)
    n, m = len(calls), len(others)
    shortest = max(1, (min(n, m) + 1) // 2)
    best: tuple[bool, float, int, int] | None = None
    for shift in sorted(range(shortest - m, n - shortest + 1), key=abs)[:MOST_SHIFTS]:
        low, high = max(0, shift), min(n, m + shift)
        mine, theirs = slice(low, high), slice(low - shift, high - shift)
        if (a[0][mine] != b[0][theirs]).any():
            continue
        sized = (a[1][mine] >= 0) & (b[1][theirs] >= 0)
        if int((a[1][mine] != b[1][theirs])[sized].sum()) > _WRONG_SIZES * int(sized.sum()):
            continue
        apart = a[3][mine] - b[3][theirs]
        moved = int(np.median(apart))
        met = (a[2][mine] < b[3][theirs] + moved) & (b[2][theirs] + moved < a[3][mine])
        if met.mean() < _MEET:
            continue
        far = float(np.median(np.abs(apart)))
        marked = (a[4][mine] >= 0) & (b[4][theirs] >= 0)
        other_steps = bool((a[4][mine] != b[4][theirs])[marked].any())
        score = (other_steps, far, abs(shift), shift)
        best = score if best is None else min(best, score)
    return None if best is None else best[3]


def _columns(calls: Sequence[RankCall], kinds: dict[str, int]) -> Ints:
    """Return columns of the calls: kind, size (-1 if unknown or different per member), start, end and step (or -1)."""
    rows = [
        (kinds[call.kind], _size(call), call.start_ns, call.end_ns, -1 if call.step is None else call.step)
        for call in calls
    ]
    return np.array(rows, np.int64).T


def _size(call: RankCall) -> int:
    """Return the input or output size that is equal on all members, in elements; -1 if there is none."""
    if call.kind in SAME_IN and call.elements is not None:
        return call.elements
    return call.out_elements if call.kind in SAME_OUT and call.out_elements is not None else -1


def _agree(first: RankCall, second: RankCall) -> bool:
    """Check that the recorded sizes of two calls do not contradict each other."""
    sizes = _size(first), _size(second)
    return min(sizes) < 0 or sizes[0] == sizes[1]


def _overlapping(
    places: Sequence[int], calls: Sequence[RankCall], others: Sequence[int], other_calls: Sequence[RankCall]
) -> list[tuple[int, int]]:
    """Match calls of one kind and compatible sizes that run at the same time, in order, each at most once."""
    out: list[tuple[int, int]] = []
    begin = 0
    others = sorted(others)  # by start
    for at in sorted(places):
        mine = calls[at]
        for index in range(begin, len(others)):
            theirs = other_calls[others[index]]
            if theirs.start_ns >= mine.end_ns:
                break
            if theirs.end_ns > mine.start_ns and mine.kind == theirs.kind and _agree(mine, theirs):
                out.append((at, others[index]))
                begin = index + 1
                break
    return out


def _shared_calls(rows: Sequence[_Row], known: Known) -> defaultdict[int, defaultdict[int, list[tuple[int, int]]]]:
    """Return rank → other rank → pairs of call indices, for collectives in which each of the two ranks waits for the
    other.
    """
    shared: defaultdict[int, defaultdict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        (first_rank, at), *others = row.calls
        if known[first_rank][at].kind not in TOGETHER:
            continue
        for other, there in others:
            if row.how == "sequence" or _agree(known[first_rank][at], known[other][there]):
                shared[first_rank][other].append((at, there))
                shared[other][first_rank].append((there, at))
    return shared


def _clocks(numbers: Iterable[int], rows: Sequence[_Row], known: Known) -> list[Clock]:
    """Return one clock per rank. Each rank in turn is aligned with the already aligned rank with which it shares most
    collectives.

    A collective in which all members wait for each other ends on all devices within microseconds. A device clock is
    shifted by the median difference between these ends if it is too large for chance. Ends on the host vary too much
    for this. Any clock is shifted by it if the recorded times are impossible (one member ends before another begins).
    Members whose match is inferred and whose sizes disagree are ignored, because they may belong to two collectives.
    """
    shared = _shared_calls(rows, known)
    out: dict[int, Clock] = {}
    for first in sorted(numbers):
        if first in out:
            continue
        out[first] = Clock(rank=first, shift_us=0.0, corrected=False, by=0, spread_us=0.0)
        near = [(-len(pairs), rank, first) for rank, pairs in shared[first].items()]
        heapq.heapify(near)
        while near:
            _, rank, anchor = heapq.heappop(near)
            if rank in out:
                continue
            pairs = [(known[anchor][a], known[rank][b]) for a, b in shared[anchor][rank]]
            out[rank] = _clock(rank, anchor, pairs, round(out[anchor].shift_us * 1e3))
            for other, calls in shared[rank].items():
                if other not in out:
                    heapq.heappush(near, (-len(calls), other, rank))
    return [out[rank] for rank in sorted(out)]


def _clock(rank: int, anchor: int, pairs: Sequence[tuple[RankCall, RankCall]], moved_ns: int) -> Clock:
    """Return the clock of a rank, computed from the ends of the collectives that it shares with `anchor`. `anchor` is
    an aligned rank, whose own clock was shifted by `moved_ns`.
    """
    differences = np.array([(known.end_ns + moved_ns - other.end_ns) / 1e3 for known, other in pairs])
    middle = float(np.median(differences))
    scatter = float(np.median(np.abs(differences - middle)))
    impossible = sum(
        other.start_ns > known.end_ns + moved_ns or known.start_ns + moved_ns > other.end_ns for known, other in pairs
    )
    on_device = all(call.note < 0 for pair in pairs for call in pair)
    # Four standard errors of a median (1.25 σ/√n, σ = 1.48 times the median deviation), and what clocks resolve.
    chance = 4 * 1.25 * 1.48 * scatter / len(pairs) ** 0.5 + 1.0
    moved = impossible > 0 or (on_device and len(pairs) >= ENOUGH and abs(middle) > chance)
    shift, spread = (middle, scatter) if moved else (0.0, float(np.median(np.abs(differences))))
    return Clock(rank=rank, shift_us=shift, corrected=moved, by=len(pairs), spread_us=spread, against=anchor)


def _matched(row: _Row, known: Known, moved_ns: dict[int, int]) -> Matched:
    calls = [(rank, at, known[rank][at]) for rank, at in sorted(row.calls)]
    last = max(call.start_ns + moved_ns[rank] for rank, _, call in calls)
    members: list[Member] = []
    for rank, at, call in calls:
        start, end = call.start_ns + moved_ns[rank], call.end_ns + moved_ns[rank]
        waiting = min(max(0, last - start), end - start)
        members.append(
            Member(
                rank=rank,
                call=at,
                start_ns=start,
                end_ns=end,
                waiting_us=waiting / 1e3,
                transfer_us=(end - start - waiting) / 1e3,
            )
        )
    first = calls[0][2]
    return Matched(
        kind=first.kind,
        group=first.group,
        group_size=max((call.group_size for _, _, call in calls if call.group_size is not None), default=None),
        sequence=first.sequence,
        elements=first.elements,
        dtype=first.dtype,
        how=row.how,
        members=tuple(members),
    )


def _disagreements(at: int, matched: Matched, known: Known) -> list[Disagreement]:
    """Return the properties that should be equal for all members of a collective but are not."""
    calls = {member.rank: known[member.rank][member.call] for member in matched.members}
    kinds = {call.kind for call in calls.values()}
    out: list[Disagreement] = []

    def compare(what: str, value_of: Callable[[RankCall], object]) -> None:
        values = {str(rank): str(value) for rank, call in calls.items() if (value := value_of(call)) is not None}
        if len(set(values.values())) > 1:
            out.append(Disagreement(collective=at, what=what, values=values))

    if not kinds <= PAIRED:
        compare("operation", lambda call: call.kind)
        if len(kinds) > 1:
            return out
    compare("dtype", lambda call: call.dtype)
    compare("group size", lambda call: call.group_size)
    kind = next(iter(kinds))
    if kind in SAME_IN or kinds <= PAIRED:
        compare("elements in", lambda call: call.elements)
    if kind in SAME_OUT:
        compare("elements out", lambda call: call.out_elements)
    if kind == "all_to_all":
        out += _splits(at, calls)
    return out


def _splits(at: int, calls: dict[int, RankCall]) -> list[Disagreement]:
    """Return the cases in which one rank sends a different number of rows than its peer expects, if both are recorded.

    Every pair of ranks is compared, so collectives with more than `MOST_SPLIT` known members are skipped.
    """
    members = _members(next(iter(calls.values())).ranks)
    if members is None or len(calls) > MOST_SPLIT:
        return []
    place = {rank: i for i, rank in enumerate(members)}
    out: list[Disagreement] = []
    for (sender, sends), (receiver, gets) in product(calls.items(), repeat=2):
        i, j = place.get(sender, -1), place.get(receiver, -1)
        if sends.in_split is None or gets.out_split is None or min(i, j) < 0:
            continue
        if max(i, j) < min(len(sends.in_split), len(gets.out_split)) and sends.in_split[j] != gets.out_split[i]:
            values = {
                str(sender): f"sends {sends.in_split[j]} to rank {receiver}",
                str(receiver): f"expects {gets.out_split[i]} from rank {sender}",
            }
            out.append(Disagreement(collective=at, what="splits", values=values))
    return out


def _members(text: str | None) -> list[int] | None:
    """Parse the members of a group; return None if the text is truncated or missing."""
    try:
        return msgspec.json.decode(text or "", type=list[int])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
