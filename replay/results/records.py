# pyright: strict
"""The records of a result file, which is a JSON Lines file with a versioned schema.

Records are only appended. Module `reading` reads the file. Module `writing` writes it, and no crash can damage it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from opreplay.initializers.amounts import Work
from opreplay.replay.collectives.model import CollectiveFacts
from opreplay.replay.ir.kernel import Confidence, Evidence, WorkKind
from opreplay.replay.ir.model import Assumption, Resolution
from opreplay.replay.ir.reasons import NOT_GIVEN, Reason, ReasonTotal
from opreplay.replay.ir.step import StepReport
from opreplay.replay.ir.verdicts import MetaCheck, ValueCheck
from opreplay.replay.results.measurement import Measurement
from opreplay.traces.joins.matched import Clock, Disagreement, RankSum

SCHEMA_VERSION = 4
"""Version of the schema of result files.

1: first version. 2: new records "resumed", "trace" and "job"; ops may follow an interrupted summary. 3: new record
"sequence", and measurements in a sequence. 4: `reason` of an op is a structured value instead of text.
"""

Status = Literal["replayed", "skipped", "failed"]


By = Literal[
    "user estimator", "user properties", "tile program", "user rule", "rule", "invented sizes", "bytes", "nothing"
]
"""How a prediction was made, in order of precedence.

"invented sizes": by a built-in rule, but with sizes that no argument gives. "nothing": there is no prediction. The time
is 0 and not part of any total.
"""


L2State = Literal["cold", "loop", "warm", "sequence"]
"""Assumed contents of a simulated device's caches when an op starts.

"cold": none of its data. "loop": its code but not the data it reads, as in benchmarks that loop over single calls.
"warm": its data and its code. "sequence": what the preceding calls leave there.
"""

LINES = (".jsonl", ".ndjson")
"""Suffixes of JSON Lines files, which are written op by op."""


class Simulated(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A prediction for one call of an op, or one launch of a kernel, on one simulated device."""

    time_us: float
    bound: str
    """What bounds the time: "cube", "vector", "hbm", "l2", "launch", "link" or one of the following.

    "core load": the cores request less data than HBM could deliver. "aicpu": control processors. "slow path": a slow
    path of the kernel library. "custom": a user's own estimate. "none": nothing, because the op is a view.
    """
    terms_us: dict[str, float]
    kernels: tuple[str, ...]
    """CANN kernel types that the op was lowered to."""
    confidence: Confidence
    low_us: float
    high_us: float
    """Upper end of the 80 % band."""
    evidence: Evidence | None = None
    """Best evidence for the prediction, e.g. measured on this SoC; None in older files and for user estimates."""
    work: WorkKind | None = None
    """Kind of work of the op's longest kernel; None if `evidence` is None."""
    by: By | None = None
    """How the prediction was made; None in older files."""
    source: str = ""
    """For a user's registration: "function (file.py:line)"; if there is no prediction: why."""
    l2: L2State = "sequence"
    """Assumed contents of the caches when the op starts."""
    extrapolated: bool = False
    """Whether a kernel is far outside the measured sizes or dtypes of its family. The band is then wide."""
    no_path: str = ""
    """Dtype of a matrix product of the op that no known unit of the device multiplies ("float64"); "" if there is none.

    The predicted time is then that of another dtype. The device itself would reject the op or leave it to its host
    processor.
    """
    algorithm: str = ""
    """For a collective: how it runs on the links, e.g. "direct over HCCS, then ring over RDMA"."""
    taken_for: str = ""
    """What the prediction takes the op for. The meaning depends on how the prediction was made.

    For a user's rule: what its kernels were costed as, e.g. "Axpy as one of the family Elementwise". For a user's
    estimator or properties: facts that they used although these facts are not known for the op. Otherwise: the op with
    a similar name whose rule was used.
    """
    measured: Literal["", "call", "op", "family"] = ""
    """Closest of the user's own measurements (calls in a device file) on which the time is based.

    "call": measurements of this very call. "op": of other calls of the op. "family": of its kernel family. "": none.
    """
    slow_path: str | msgspec.UnsetType = msgspec.UNSET
    """For a kernel: the slow path of its library that the kernel takes; "" if none is known."""
    nearby_factor: float | msgspec.UnsetType = msgspec.UNSET
    """For a kernel: factor by which measured kernels of similar size on the same SoC changed its time."""

    def times(self, factor: float) -> Simulated:
        """Return the prediction with its time, band and terms multiplied by `factor`."""
        return msgspec.structs.replace(
            self,
            time_us=self.time_us * factor,
            low_us=self.low_us * factor,
            high_us=self.high_us * factor,
            terms_us={name: us * factor for name, us in self.terms_us.items()},
        )


class NpuKernel(msgspec.Struct, frozen=True, kw_only=True):
    """All launches of one CANN kernel type by the recorded calls of one op."""

    type: str
    count: int
    total_us: float


class Filling(msgspec.Struct, frozen=True, kw_only=True):
    """How the arguments were filled with values. The assumptions about each argument are stored elsewhere."""

    summary: str = ""
    """The initializer's description of the values, such as "5 sequences of 200"."""
    at_random: tuple[str, ...] = ()
    """Arguments that were filled with random integers although, judging by their names, they determine the work.

    These are lengths, tables, offsets and slots of ops without an initializer.
    """


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """FLOPs and bytes of one call, computed from its sizes."""

    flops: float | None
    """Number of operations; 0 for a call that only moves data, None if unknown."""
    moved_bytes: int | None
    """Bytes needed to read each argument once and to write the result; None if unknown."""
    dtype: str = ""
    """Dtype of the computation."""
    why: str = ""
    """Why a number is unknown."""
    assumed: str = ""
    """Assumptions behind the numbers; the recording does not confirm these assumptions."""


class OpResult(msgspec.Struct, frozen=True, kw_only=True, tag="op", tag_field="record"):
    """One op of a run. Times are in microseconds per call; multiply by `count` for a total."""

    id: str
    name: str
    count: int
    status: Status
    reason: Reason | None = None
    """Why the op was not replayed; None if it was."""
    resolved_by: Resolution | None = None
    via: str | None = None
    inputs: str = ""
    """Short description of the arguments for people: "bf16[512,512] · bf16[512,2048]"."""
    call: str = ""
    """The full call in the syntax of `opreplay op`.

    It is "" for an op that cannot be called, for one with very many arguments, and in older files.
    """
    recorded_device_us: float | None = None
    recorded_host_us: float | None = None
    recorded_share: float = 0.0
    """Share of all `count` calls in the trace's device time, or in its host time if the trace has no device time."""
    measured_us: float | None = None
    measurement: Measurement | None = None
    simulated_us: dict[str, float] = {}
    """SoC → predicted time, in the requested order."""
    bound: str | None = None
    """What bounds the call on the first requested SoC."""
    simulated: dict[str, Simulated] = {}
    kernel_classes: dict[str, float] = {}
    """Class of work ("GEMM", "attention", "Triton", ...) → share of the time of the recorded kernels, largest first."""
    product: Product | None = None
    """FLOPs and bytes of a call; None if neither is known."""
    npu_kernels: tuple[NpuKernel, ...] = ()
    """Kernels that the recorded NPU ran, summed over all calls, most time first; only if there is a kernel table."""
    initializer: str | None = None
    filling: Filling | None = None
    """How the arguments were filled; None if there is nothing to report."""
    assumptions: tuple[Assumption, ...] = ()
    meta: MetaCheck | None = None
    """Result on meta tensors, if the plan was run on meta tensors."""
    work: Work | None = None
    """Work that the arguments' values cause; None if not requested, or if shapes alone determine it."""
    fidelity: Fidelity | None = None
    """How kernels, child ops and times compare with the recorded ones; None if that was not requested."""
    values: ValueCheck | None = None
    """How the results compare with those of the op's own (recorded) implementation; None if that was not requested."""
    collective: CollectiveFacts | None = None
    """For a collective: sizes, rates, and how it ran on real ranks; None for other ops."""
    suspicions: tuple[str, ...] = ()
    """Contradictory times, each with its likeliest cause.

    A time is contradictory if it is less than a 20th of, or more than 50 times, the recorded time. Only ops with more
    than 1 % of the recorded time are checked.
    """
    measure_s: float | None = None
    """Wall time of the measuring loop."""
    attempts: int = 1
    """Number of attempts: 2 if the op failed next to other ops and was retried alone in a fresh process."""

    def why_not(self) -> Reason:
        """Return why the op was not replayed."""
        return self.reason or NOT_GIVEN


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="header", tag_field="record"):
    """The first line of a result file."""

    schema_version: int = SCHEMA_VERSION
    opreplay_version: str
    started_at: str
    """Start time of the run in UTC, ISO 8601."""
    trace: dict[str, object]
    environment: dict[str, object]
    options: dict[str, object]
    identity: dict[str, str] = {}
    """Facts that must be the same to resume the run: digests of plan and options, versions, device, seed."""
    step: StepReport | None = None
    """Recorded step that a sequence replays. None if there is no trace, if ops are excluded, and in older files."""


class Resumed(msgspec.Struct, frozen=True, kw_only=True, tag="resumed", tag_field="record"):
    """Marks that the following lines are from a later process that resumed the run."""

    started_at: str
    """Start time of the later process in UTC, ISO 8601."""
    kept: int
    """Number of ops that already had results."""
    environment: dict[str, object]


class TraceResult(msgspec.Struct, frozen=True, kw_only=True, tag="trace", tag_field="record"):
    """Totals of one trace in a run of several traces. Times are in microseconds over all calls."""

    source: str
    """File name, with as much of its folder as distinguishes it from the other files."""
    job: str
    """Name of the job in which the trace is a rank; the trace's own `source` if it belongs to no job."""
    rank: int | None = None
    world_size: int | None = None
    ops: int
    shared: int
    """Number of `ops` that other traces also have."""
    replayed: int
    covered_share: float
    clock: Literal["device", "host"] | None = None
    """Clock of `recorded_us`: the device's, or the host's if the trace has no device time. The two are never added."""
    recorded_us: float | None
    """Recorded time of the selected ops; None if no time was recorded (an ExecutionTrace or a captured plan)."""
    total_us: float | None = None
    """Recorded time of the whole trace, including unselected ops; None if no time was recorded, and in older files."""
    measured_us: float | None
    """Measured time; None if nothing was measured."""
    simulated_us: dict[str, float] = {}
    unpredicted_share: dict[str, float] = {}
    """SoC → share of `recorded_us` that has no predictions in `simulated_us`; empty if no time was recorded."""
    losses: dict[str, int] = {}
    """Reason, such as "truncated file" → number of losses while reading. All totals cover only what could be read."""


class CollectivesResult(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of a job's ranks, matched with each other over their whole traces. Times are in microseconds."""

    matched: int
    inferred: int
    """Number of `matched` that were matched by order or overlap in time, because no sequence number was recorded."""
    skew_us: float
    """Median over all collectives of the time from the start on the first rank to the start on the last rank."""
    waiting_us: float
    """Waiting time until the last known member had started, summed over all ranks and collectives."""
    transfer_us: float
    ranks: tuple[RankSum, ...]
    clocks: tuple[Clock, ...]
    disagreements: int
    disagreeing: tuple[Disagreement, ...]
    """The first few disagreements. Their field `collective` is the position of the collective in the order of time."""
    missing: int
    """Largest number of members of one collective whose traces are missing.

    If it is not 0, `waiting_us` is too low and `transfer_us` too high.
    """
    unmatched: int
    """Number of calls that have no counterpart on another of the given ranks."""


class JobResult(msgspec.Struct, frozen=True, kw_only=True, tag="job", tag_field="record"):
    """Totals over the ranks of one job."""

    job: str
    ranks: tuple[int, ...]
    world_size: int | None
    """Recorded world size; None if no rank recorded it."""
    rank_from: str
    """Where the rank came from: "metadata", "file name", or "" for a trace that belongs to no job."""
    ops: int
    """Number of unique ops over all ranks."""
    rank_ops: int
    """Sum of the numbers of ops of all ranks: the number of ops to run if equal ops were not merged."""
    replayed: int
    covered_share: float | None
    """Covered share of the recorded time; None if ranks have different clocks, because their times cannot be added."""
    clock: Literal["device", "host"] | None = None
    """Clock of the ranks' times; None if ranks have different clocks, or if no time was recorded."""
    recorded_us: float | None
    measured_us: float | None
    """Measured time; None if nothing was measured."""
    slowest_rank_us: float | None
    """Largest recorded time of any rank. Like `recorded_us`, it is None if the ranks have times on different clocks."""
    simulated_us: dict[str, float] = {}
    collectives: CollectivesResult | None = None
    """Collectives of the ranks; None if the traces share no collective, or if no trace has times of collectives."""


class SharedStepResult(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of a step that overlap its calls, measured on several ranks. Times are medians over passes in
    microseconds.

    The time of a pass is that of its slowest rank. Three kinds of passes alternate: with collectives, without them, and
    with only collectives.
    """

    ranks: int
    backend: str
    collectives: int
    """Number of calls of collectives in the step."""
    collectives_replayed: int
    recorded_us: float
    """Recorded time of the replayed collectives, summed, including waiting for other ranks."""
    waits_recorded: int
    """Number of replayed collectives for which the replay waited at the recorded point."""
    waits_inferred: int
    """Number of replayed collectives waited for before the first call that started after their recorded end."""
    waits_unknown: int
    """Number of replayed collectives waited for immediately, because the recording does not show where."""
    in_flight_us: float
    """Time in which at least one collective was in flight."""
    waited_us: float
    """Time in which calls waited for a collective."""
    hidden_us: float
    """Time in which a collective was in flight while nothing waited for it."""
    hidden_share_low: float | None = None
    hidden_share_high: float | None = None
    """Ninth decile, over the passes, of the share of the time in flight that was hidden behind calls.

    `hidden_share_low` is the first decile. Both are None in older files.
    """
    calls_alone_us: float
    """Sum of the times of all calls in a pass without collectives."""
    wall_alone_us: float
    """Wall time of a pass without collectives."""
    collectives_alone_us: float
    """Time of the collectives one after the other, without calls."""
    unseen: int = 0
    """Number of collectives whose end is only noticed when they are waited for. Their time is an upper bound."""
    restarts: int = 0
    """Number of groups of ranks that failed before the step was over."""


class SequenceResult(msgspec.Struct, frozen=True, kw_only=True, tag="sequence", tag_field="record"):
    """A recorded step and its replay in recorded order; times are in microseconds."""

    step: str
    """Annotation that marks the step; "" for the whole trace."""
    steps: int
    """Number of recorded steps from which the step was chosen."""
    calls: int
    """Number of calls in the step, without calls inside other calls."""
    calls_replayed: int
    calls_nested: int
    calls_cut: int
    """Number of calls beyond the limit of a sequence."""
    recorded_step_us: float
    """Recorded wall time of the step."""
    recorded_us: float
    """Recorded time of the replayed calls on the clock of the shares: the device's clock if the trace has one."""
    recorded_host_us: float | None
    """Recorded host time of the calls; None for a captured plan, for which no time was recorded."""
    left_out_share: float
    """Share of the step's recorded time that is not in the sequence."""
    passes: int
    sum_us: float | None
    """Total time of all calls of a pass, as the median over the passes; None if no pass was completed."""
    sum_low_us: float | None
    sum_high_us: float | None
    """Upper end of the 95 % interval of `sum_us`; None below six passes."""
    wall_us: float | None
    """Wall time of one pass, including what happens between the calls, such as freeing tensors."""
    tensors: Tensors
    restarts: int = 0
    """Number of processes that ended before the sequence was over."""
    shared: SharedStepResult | None = None
    """Results if the sequence ran on ranks. The times of passes then include the collectives next to the calls."""
    medians_us: float | None = None
    """Sum over all calls, where the time of each call is the median of its op, as in a table of ops.

    Unlike `sum_us`, it does not include interruptions and slow calls of a pass.
    """
    fresh_bytes: int = 0
    """Bytes of those results of a pass that have 128 kB or more. Counted if a CPU was recorded.

    A replay keeps the memory of freed results. A program without this pays for the first touch of these pages in every
    step.
    """


class Summary(msgspec.Struct, frozen=True, kw_only=True, tag="summary", tag_field="record"):
    """The last line of a result file. A file without it was cut short. An interrupted run may be resumed."""

    ops: int
    replayed: int
    skipped: int
    failed: int
    reasons: dict[str, int]
    """Reason kind → number of ops."""
    not_replayed: tuple[ReasonTotal, ...] = ()
    """Total of each reason: unique ops, calls, share of the recorded time."""
    covered_share: float
    """Share of the recorded time in replayed ops."""
    recorded_us: float
    """Recorded time of all calls of all ops in the plan, on the clock that `recorded_share` uses."""
    measured_us: float | None
    """Measured time of the replayed ops; None if nothing was measured.

    It is the sum of the ops' medians times their numbers of calls. For a sequence, it is the median over passes of the
    sum of a pass.
    """
    simulated_us: dict[str, float]
    unpredicted_share: dict[str, float] = {}
    """SoC → share of the recorded time (of the ops if no time was recorded) that `simulated_us` leaves out."""
    wall_s: float | None
    """Wall time of the run; None if the run was killed before its summary."""
    interrupted: bool = False
    not_reached: int = 0
    """Number of ops that an interrupted run did not reach: they were neither replayed nor skipped and did not fail."""


Record = Header | OpResult | Resumed | TraceResult | JobResult | SequenceResult | Summary


Agreement = Literal["match", "differ", "not recorded", "other device"]
"""Result of a comparison of what ran with what was recorded.

"other device": the trace has kernels of an accelerator and the op was replayed on a device without one, or vice versa.
"""


class Fidelity(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison, for one op, of what ran here with what the trace recorded."""

    kernels: Agreement
    """Agreement of the kernels' names and of their launches per call."""
    children: Agreement
    """Agreement of the names of the direct child ops, in order."""
    missing: tuple[str, ...] = ()
    """Recorded kernels (or child ops, if kernels cannot be compared) that did not run here."""
    extra: tuple[str, ...] = ()
    """Kernels or child ops that ran here but were not recorded."""
    time_ratio: float | None = None
    """Time here divided by the recorded time: kernel times if both ran kernels, host times if neither did."""
    note: str = ""
    """Why there is no profile."""


class Tensors(msgspec.Struct, frozen=True, kw_only=True):
    """Where the calls' tensor arguments came from, and how much of the memory budget they used."""

    recorded: int = 0
    """Number of arguments whose memory was recorded; for all others, the source is inferred."""
    results: int = 0
    """Number of arguments that were the result of an earlier call."""
    views: int = 0
    """Number of arguments that were a view, with another shape, of the result of an earlier call."""
    outside_arguments: int = 0
    """Number of arguments that came from outside the sequence."""
    remade: int = 0
    """Number of arguments newly created for their call."""
    outside: int = 0
    """Number of tensors from outside the sequence, each with its own memory."""
    recycled: int = 0
    """Number of further tensors from outside the sequence that shared memory with other tensors from outside."""
    refilled: int = 0
    """Number of tensors refilled in a pass: they were not finite, or outside the domain of the op that reads them."""
    peak_bytes: int = 0
    budget_bytes: int = 0
