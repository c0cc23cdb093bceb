# pyright: strict
"""Joins the graphs of one step on several ranks. A collective continues when all its known members have started.

Each node of a collective is split in two: the arrival, when the rank starts to wait, and the transfer after the last
arrival.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from opreplay.replay.timeline.graph.model import COLLECTIVE, MEMBERS, STREAM, Carried, Edges, Lane, Nodes, StepGraph
from opreplay.replay.timeline.graph.schedule import Schedule, retimed, step_length
from opreplay.traces.arrays import Floats, Ints
from opreplay.traces.joins.matched import JobCollectives, Matched, Member


class RankGraph(msgspec.Struct, frozen=True, kw_only=True):
    """The graph of one rank's step."""

    rank: int
    graph: StepGraph
    at_us: float
    """Zero of the graph's clock, in µs on the job's clock."""
    node_of_call: Mapping[int, int]
    """Position of a collective among the rank's calls → its node in `graph`."""


class JobGraph(msgspec.Struct, frozen=True, kw_only=True):
    """The joined graph of all ranks; times in `whole` are on the job's clock."""

    ranks: tuple[RankGraph, ...]
    whole: StepGraph
    rank: Ints
    """Index into `ranks` for each node of `whole`. It is -1 for the nodes at which the members of a collective meet."""
    local: Ints
    """For each node of `whole`: its number in the rank's own graph; -1 for added nodes."""
    edge_rank: Ints
    """For each edge of `whole`: index into `ranks`; -1 for edges between ranks."""
    edge_local: Ints
    """For each edge of `whole`: its number in the rank's own graph."""
    node: tuple[Ints, ...]
    """By rank: the node in `whole` of each of the rank's nodes. For a collective with other members, it is the
    transfer.
    """
    arrival: tuple[Ints, ...]
    """By rank: the node in `whole` at which each of the rank's nodes starts to wait.

    It differs from the node in `node` only for a collective with other members.
    """
    transfer_share: tuple[Floats, ...]
    """By rank: share of each node's recorded time that is not spent waiting for other ranks."""
    met: tuple[int, ...]
    """Positions in `JobCollectives.matched` of the collectives that synchronise ranks in this step."""
    dropped: int
    """Number of collectives in `met` that were dropped because they contradict the order of other collectives."""

    def lags(self, by_rank: Sequence[Floats] | None = None) -> Floats:
        """Return the lags of all edges. They are those in `by_rank`, or the recorded ones if it is None."""
        out = np.zeros(len(self.whole.edges))
        for index, rank in enumerate(self.ranks):
            mine = self.edge_rank == index
            out[mine] = (rank.graph.edges.lag_us if by_rank is None else by_rank[index])[self.edge_local[mine]]
        return out

    def durations(self, by_rank: Sequence[Floats] | None = None, waitless: Sequence[Floats] | None = None) -> Floats:
        """Return the durations of all nodes from the durations in each rank's graph (default: recorded).

        The time of a collective with other members is multiplied by its share without waiting. `waitless` (by rank, one
        value per node) is 1.0 for collectives with predicted times. These include no waiting, so they count in full.
        """
        out = np.zeros(len(self.whole.nodes))
        for index, rank in enumerate(self.ranks):
            us = rank.graph.nodes.dur_us if by_rank is None else by_rank[index]
            share = self.transfer_share[index]
            if waitless is not None:
                share = np.where(waitless[index] > 0, 1.0, share)
            out[self.node[index]] = us * share
        return out

    def scheduled(
        self,
        durations_us: Floats | None = None,
        *,
        lags_us: Floats | None = None,
        held_together: bool = True,
    ) -> Schedule:
        """Return the schedule of the whole job. With `held_together=False`, no rank waits for another one."""
        durations = self.durations() if durations_us is None else durations_us
        lags = self.lags() if lags_us is None else lags_us
        if not held_together:
            lags = np.where(self.whole.edges.kind == MEMBERS, -1e15, lags)
        return retimed(self.whole, durations, lags_us=lags)

    def steps_us(self, schedule: Schedule) -> list[float]:
        """Return the step length of each rank in a schedule of the whole job."""
        out: list[float] = []
        for index, rank in enumerate(self.ranks):
            start, end = self.of_rank(index, schedule)
            out.append(step_length(rank.graph, start, end, rank.graph.begin_us))
        return out

    def waiting_us(self, schedule: Schedule) -> float:
        """Return the time spent waiting for other ranks, summed over all ranks."""
        return sum(
            float((schedule.start_us[node] - schedule.end_us[arrival])[node != arrival].sum())
            for node, arrival in zip(self.node, self.arrival, strict=True)
        )

    def of_rank(self, index: int, schedule: Schedule) -> tuple[Floats, Floats]:
        """Return (starts, ends) of one rank's nodes on that rank's clock. A collective starts when this rank
        arrives.
        """
        at = self.ranks[index].at_us
        return schedule.start_us[self.arrival[index]] - at, schedule.end_us[self.node[index]] - at


class _JobBuilder:
    """Nodes and edges of all ranks before sorting."""

    def __init__(self, ranks: Sequence[RankGraph]) -> None:
        self.ranks = ranks
        self.base: list[int] = np.cumsum([0, *(len(rank.graph.nodes) for rank in ranks)]).tolist()
        total = self.base[-1]
        self.rank: list[int] = np.concatenate(
            [np.full(len(rank.graph.nodes), i) for i, rank in enumerate(ranks)]
        ).tolist()
        self.local: list[int] = np.concatenate([np.arange(len(rank.graph.nodes)) for rank in ranks]).tolist()
        self.start: list[float] = np.concatenate([rank.graph.nodes.start_us + rank.at_us for rank in ranks]).tolist()
        self.dur: list[float] = np.concatenate([rank.graph.nodes.dur_us for rank in ranks]).tolist()
        lanes = np.cumsum([0, *(len(rank.graph.lanes) for rank in ranks)]).tolist()
        self.lane: list[int] = np.concatenate(
            [rank.graph.nodes.lane + lanes[i] for i, rank in enumerate(ranks)]
        ).tolist()
        self.release: list[float] = np.concatenate([rank.graph.release_us + rank.at_us for rank in ranks]).tolist()
        edges = [rank.graph.edges for rank in ranks]
        self.source: list[int] = np.concatenate([e.source + b for e, b in zip(edges, self.base, strict=False)]).tolist()
        self.target: list[int] = np.concatenate([e.target + b for e, b in zip(edges, self.base, strict=False)]).tolist()
        self.kind: list[int] = np.concatenate([e.kind for e in edges]).tolist()
        self.recorded: list[bool] = np.concatenate([e.recorded for e in edges]).tolist()
        self.edge_rank: list[int] = np.concatenate([np.full(len(e), i) for i, e in enumerate(edges)]).tolist()
        self.edge_local: list[int] = np.concatenate([np.arange(len(e)) for e in edges]).tolist()
        self.arrival = list(range(total))
        self.share = [np.ones(len(rank.graph.nodes)) for rank in ranks]
        self.meeting: list[bool] = [False] * total

    def node(self, *, rank: int, lane: int, start: float) -> int:
        """Add a node of zero length; return its number."""
        self.rank.append(rank)
        self.local.append(-1)
        self.start.append(start)
        self.dur.append(0.0)
        self.lane.append(lane)
        self.release.append(-np.inf)
        self.meeting.append(rank < 0)
        return len(self.rank) - 1

    def edge(self, source: int, target: int, *, kind: int = MEMBERS, recorded: bool = True) -> None:
        """Add an edge, by default between members of a collective."""
        self.source.append(source)
        self.target.append(target)
        self.kind.append(kind)
        self.recorded.append(recorded)
        self.edge_rank.append(-1)
        self.edge_local.append(-1)

    def synchronize(self, matched: Matched, members: Sequence[tuple[int, Member]]) -> None:
        """Make the `members` (index of the rank, member) of one collective wait for each other."""
        arrived: dict[int, int] = {}
        nodes: list[int] = []
        for index, member in members:
            local = self.ranks[index].node_of_call[member.call]
            node = self.base[index] + local
            arrival = self.node(rank=index, lane=self.lane[node], start=self.start[node])
            self.release[arrival] = self.release[node]
            self.release[node] = -np.inf
            self.arrival[node] = arrival
            arrived[node] = arrival
            dur = self.dur[node]
            share = member.transfer_us / dur if dur else 1.0
            self.share[index][local] = min(1.0, share)
            self.start[node] += dur * (1.0 - min(1.0, share))
            nodes.append(node)
        meeting = self.node(rank=-1, lane=self.lane[nodes[0]], start=max(self.start[a] for a in arrived.values()))
        recorded = matched.how == "sequence"
        for node, arrival in arrived.items():
            self.edge(arrival, node, kind=STREAM)
            self.edge(arrival, meeting, recorded=recorded)
            self.edge(meeting, node, recorded=recorded)

    def redirect(self) -> None:
        """Make a collective's dependencies on its own rank delay its arrival instead of its transfer."""
        self.target = [
            target if rank < 0 else self.arrival[target]
            for target, rank in zip(self.target, self.edge_rank, strict=True)
        ]


def job_graph(ranks: Sequence[RankGraph], collectives: JobCollectives) -> JobGraph:
    """Join the graphs of several ranks. A collective with fewer than two members in these steps is not changed."""
    place = {rank_graph.rank: index for index, rank_graph in enumerate(ranks)}
    joined = _JobBuilder(ranks)
    met: list[int] = []
    for at, matched in enumerate(collectives.matched):
        members = [
            (place[member.rank], member)
            for member in matched.members
            if member.rank in place and member.call in ranks[place[member.rank]].node_of_call
        ]
        if len(members) > 1:
            joined.synchronize(matched, members)
            met.append(at)
    joined.redirect()
    order, keep, dropped = _order(joined)
    return _assembled(joined, order, keep, met, dropped)


def _order(joined: _JobBuilder) -> tuple[list[int], list[bool], int]:
    """Return (nodes in topological order, whether each edge is kept, number of dropped collectives).

    Nodes are sorted by time where the edges permit it. If matches of collectives contradict each other, the earliest
    collective that blocks the order is dropped.
    """
    total = len(joined.rank)
    waits = [0] * total
    after: list[list[int]] = [[] for _ in range(total)]
    for edge, (source, target) in enumerate(zip(joined.source, joined.target, strict=True)):
        waits[target] += 1
        after[source].append(edge)
    keep = [True] * len(joined.source)
    ready = [(joined.start[node], node) for node in range(total) if not waits[node]]
    heapq.heapify(ready)
    order: list[int] = []
    done = [False] * total
    dropped = 0
    while len(order) < total:
        while ready:
            _, node = heapq.heappop(ready)
            if done[node]:
                continue
            done[node] = True
            order.append(node)
            for edge in after[node]:
                target = joined.target[edge]
                waits[target] -= 1
                if not waits[target] and not done[target]:
                    heapq.heappush(ready, (joined.start[target], target))
        if len(order) < total:
            stuck = [node for node in range(total) if not done[node] and joined.meeting[node]]
            assert stuck, "a rank's own graph has a cycle"
            first = min(stuck, key=lambda node: joined.start[node])
            for edge, target in enumerate(joined.target):
                if target == first and not done[joined.source[edge]]:
                    keep[edge] = False
                    after[joined.source[edge]].remove(edge)
            waits[first] = 0
            dropped += 1
            heapq.heappush(ready, (joined.start[first], first))
    return order, keep, dropped


def _assembled(joined: _JobBuilder, order: list[int], keep: list[bool], met: list[int], dropped: int) -> JobGraph:
    place = np.array(order, np.int64)
    row = np.empty(len(place), np.int64)
    row[place] = np.arange(len(place))
    rank, local = np.array(joined.rank, np.int64)[place], np.array(joined.local, np.int64)[place]
    used = np.flatnonzero(np.array(keep, bool))
    source, target = (
        row[np.array(joined.source, np.int64)[used]],
        row[np.array(joined.target, np.int64)[used]],
    )
    picked = np.lexsort((source, target))
    edge_rank = np.array(joined.edge_rank, np.int64)[used][picked]
    ranks, base = joined.ranks, joined.base
    blank = np.full(len(place), -1, np.int64)
    kind = np.full(len(place), COLLECTIVE, np.uint8)
    zeros = np.zeros(len(place), np.int64)
    for index, rank_graph in enumerate(ranks):
        of_rank = (rank == index) & (local >= 0)
        kind[of_rank] = rank_graph.graph.nodes.kind[local[of_rank]]
    edges = Edges(
        source=source[picked],
        target=target[picked],
        lag_us=np.zeros(len(picked)),
        kind=np.array(joined.kind, np.uint8)[used][picked],
        recorded=np.array(joined.recorded, bool)[used][picked],
        unknown_us=np.zeros(len(picked)),
        possible_us=np.full(len(picked), np.nan),
    )
    nodes = Nodes(
        kind=kind,
        lane=np.array(joined.lane, np.int64)[place],
        start_us=np.array(joined.start, np.float64)[place],
        dur_us=np.zeros(len(place)),
        name=blank,
        owner=blank,
        row=blank,
        collective=blank,
        first_slice=zeros,
        slices=zeros,
    )
    lanes = tuple(
        Lane(device=lane.device, name=f"rank {rank_graph.rank}, {lane.name}", track=lane.track)
        for rank_graph in ranks
        for lane in rank_graph.graph.lanes
    )
    first = ranks[0].graph
    whole = StepGraph(
        step=first.step,
        nodes=nodes,
        edges=edges,
        slices=first.slices,
        lanes=lanes,
        main_lane=-1,
        release_us=np.maximum(np.array(joined.release, np.float64)[place], -1e15),
        begin_us=0.0,
        recorded_us=max(rank_graph.graph.recorded_us for rank_graph in ranks),
        host_us=max(rank_graph.graph.host_us for rank_graph in ranks),
        launch_latency_us=first.launch_latency_us,
        stream_gap_us=first.stream_gap_us,
        carried=Carried(node=blank[:0], source=blank[:0]),
    )
    arrival = np.array(joined.arrival, np.int64)
    graph = JobGraph(
        ranks=tuple(ranks),
        whole=whole,
        rank=rank,
        local=local,
        edge_rank=edge_rank,
        edge_local=np.array(joined.edge_local, np.int64)[used][picked],
        node=tuple(row[base[i] : base[i + 1]] for i in range(len(ranks))),
        arrival=tuple(row[arrival[base[i] : base[i + 1]]] for i in range(len(ranks))),
        transfer_share=tuple(joined.share),
        met=tuple(met),
        dropped=dropped,
    )
    recorded = msgspec.structs.replace(nodes, dur_us=graph.durations())
    return msgspec.structs.replace(
        graph,
        whole=msgspec.structs.replace(whole, nodes=recorded, edges=msgspec.structs.replace(edges, lag_us=graph.lags())),
    )
