# pyright: strict
"""The records of a result file: an append-only JSON Lines file with a versioned schema.

`reading` reads such a file; `writing` writes one so that no crash damages it.
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
"""Changes of format: 1 first version; 2 records "resumed", "trace" and "job", ops after an interrupted summary; 3
record "sequence", measurements in a sequence; 4 `reason` of an op is a value, was its text."""

Status = Literal["replayed", "skipped", "failed"]


By = Literal[
    "user estimator", "user properties", "tile program", "user rule", "rule", "invented sizes", "bytes", "nothing"
]
"""What made a prediction, in the order in which they go before each other; "invented sizes" is a built-in rule on sizes
that are in no argument, "nothing" no prediction: its time is 0, and no total has it."""


L2State = Literal["cold", "loop", "warm", "sequence"]
"""What the caches of a simulated device hold when an op starts: nothing of its data; its code but not what it reads, as
benchmarks loop over single calls; its data and its code; what the calls before it leave there."""


class Simulated(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A prediction of one call of an op, or of one launch of a kernel, on one simulated device."""

    time_us: float
    bound: str
    """"cube", "vector", "hbm", "l2", "launch", "link", "aicpu" of control processors, "slow path" of the kernel
    library, "custom" for a user's own estimate, or "none" for a view."""
    terms_us: dict[str, float]
    kernels: tuple[str, ...]
    """CANN kernel types the op was lowered to."""
    confidence: Confidence
    low_us: float
    high_us: float
    """80 % band."""
    evidence: Evidence | None = None
    """What is known of the op on the device; None in files of older versions, and of a user's own estimate."""
    work: WorkKind | None = None
    """How the op works, by the kernel that takes longest; None where `evidence` is."""
    by: By | None = None
    """What made the prediction; None in files of older versions."""
    source: str = ""
    """Of a user's registration: "function (file.py:line)"; of no prediction, why there is none."""
    l2: L2State = "sequence"
    """What the caches were taken to hold when the op starts."""
    extrapolated: bool = False
    """A kernel of it lies far outside the sizes or dtypes that were measured of its family: the band is wide."""
    no_path: str = ""
    """The dtype of its product that no unit of the device is known to multiply ("float64"): the time is that of another
    dtype, and the device refuses the op or leaves it to its host processor."""
    algorithm: str = ""
    """Of a collective: how it runs on the links, e.g. "direct over HCCS, then ring over RDMA"."""
    taken_for: str = ""
    """Of a user's rule: what the kernels that it names were costed as, e.g. "Axpy as one of the family Elementwise";
    of a user's estimator or properties: what they used that is not known of the op; else the op whose rule was taken
    since the names are alike."""
    measured: Literal["", "call", "op", "family"] = ""
    """The nearest measurement of the user's own (calls of a device file) that the time rests on: of this very call, of
    other calls of the op, of its kernel family; empty where there is none."""
    slow_path: str | msgspec.UnsetType = msgspec.UNSET
    """Of a kernel: the slow path of the library that it takes, "" where none is known."""
    nearby_factor: float | msgspec.UnsetType = msgspec.UNSET
    """Of a kernel: what kernels measured nearby on the same SoC made of its time."""

    def times(self, factor: float) -> Simulated:
        """Return the prediction with its time, band and terms multiplied."""
        return msgspec.structs.replace(
            self,
            time_us=self.time_us * factor,
            low_us=self.low_us * factor,
            high_us=self.high_us * factor,
            terms_us={name: us * factor for name, us in self.terms_us.items()},
        )


class NpuKernel(msgspec.Struct, frozen=True, kw_only=True):
    """All launches of one CANN type by the recorded calls of one op."""

    type: str
    count: int
    total_us: float


class Filling(msgspec.Struct, frozen=True, kw_only=True):
    """How the arguments got their contents, apart from the assumptions about each."""

    summary: str = ""
    """What the op's initializer says of them: "5 sequences of 200"."""
    at_random: tuple[str, ...] = ()
    """Arguments that hold random whole numbers where their names say that they decide the work, and no initializer is
    there for the op: lengths, tables, offsets, slots."""


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """FLOPs and bytes of one call, computed from its sizes."""

    flops: float | None
    """0 of a call that only moves data; None where they are unknown."""
    moved_bytes: int | None
    """Each argument read once, the result written; None where they are unknown."""
    dtype: str = ""
    """In which it computes."""
    why: str = ""
    """Why a number is unknown."""
    assumed: str = ""
    """What the numbers rest on that the recording does not say."""


class OpResult(msgspec.Struct, frozen=True, kw_only=True, tag="op", tag_field="record"):
    """One op of a run. Times are microseconds per call; multiply by `count` for a total."""

    id: str
    name: str
    count: int
    status: Status
    reason: Reason | None = None
    """Why the op was not replayed; None where it was."""
    resolved_by: Resolution | None = None
    via: str | None = None
    inputs: str = ""
    """Short text of the arguments, for people: "bf16[512,512] · bf16[512,2048]"."""
    call: str = ""
    """The call in full, which `opreplay op` takes; "" for an op that cannot be called or takes very many arguments, and
    in older files."""
    recorded_device_us: float | None = None
    recorded_host_us: float | None = None
    recorded_share: float = 0.0
    """Of the trace's device time (host time where the trace has no device), all `count` calls together."""
    measured_us: float | None = None
    measurement: Measurement | None = None
    simulated_us: dict[str, float] = {}
    """By SoC, in the order asked for."""
    bound: str | None = None
    """On the first SoC asked for."""
    simulated: dict[str, Simulated] = {}
    kernel_classes: dict[str, float] = {}
    """Class of work ("GEMM", "attention", "Triton", ...) → share of the time of the recorded kernels, most first."""
    product: Product | None = None
    """None for an op that multiplies no matrices, or whose sizes do not tell."""
    npu_kernels: tuple[NpuKernel, ...] = ()
    """What the NPU that was recorded ran, all calls, heaviest type first; only where a kernel table says it."""
    initializer: str | None = None
    filling: Filling | None = None
    """None where there is nothing to say of it."""
    assumptions: tuple[Assumption, ...] = ()
    meta: MetaCheck | None = None
    """Of a plan that was run on meta tensors."""
    work: Work | None = None
    """What the values of the arguments make the op do; None where that was not asked, or shapes alone decide."""
    fidelity: Fidelity | None = None
    """How kernels, child ops and times compare with those recorded; None where that was not asked."""
    values: ValueCheck | None = None
    """How results compare with those of the recorded op's own implementation; None where that was not asked."""
    collective: CollectiveFacts | None = None
    """Of a collective: sizes, rates, and how it ran on real ranks; None for all else."""
    suspicions: tuple[str, ...] = ()
    """What contradicts: a time 20 times below or 50 times above the recorded one of more than 1 % of the time, with the
    likeliest cause."""
    measure_s: float | None = None
    """Wall time of the measuring loop."""
    attempts: int = 1
    """2 where the op went wrong among others and was tried again alone in a fresh process."""

    def why_not(self) -> Reason:
        """Return why the op was not replayed."""
        return self.reason or NOT_GIVEN


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="header", tag_field="record"):
    """The first line of a result file."""

    schema_version: int = SCHEMA_VERSION
    opreplay_version: str
    started_at: str
    """UTC, ISO 8601."""
    trace: dict[str, object]
    environment: dict[str, object]
    options: dict[str, object]
    identity: dict[str, str] = {}
    """What must be the same for the run to be continued: digests of plan and options, versions, device, seed."""
    step: StepReport | None = None
    """The recorded step that a sequence replays; None without a trace, for a part of its ops, and in older files."""


class Resumed(msgspec.Struct, frozen=True, kw_only=True, tag="resumed", tag_field="record"):
    """Marks that the following lines are of a later process that resumed the run."""

    started_at: str
    """UTC, ISO 8601."""
    kept: int
    """Ops whose results were there already."""
    environment: dict[str, object]


class TraceResult(msgspec.Struct, frozen=True, kw_only=True, tag="trace", tag_field="record"):
    """Sums of one trace in a run of several traces; times in microseconds over all calls."""

    source: str
    """Name of the file, with as much of its folder as tells it from the others."""
    job: str
    """Name of the job that the trace is a rank of; its own `source` where it stands alone."""
    rank: int | None = None
    world_size: int | None = None
    ops: int
    shared: int
    """Of `ops`, those that other traces have as well."""
    replayed: int
    covered_share: float
    clock: Literal["device", "host"] | None = None
    """Whose time `recorded_us` is: the device's, or the host's where the trace has no device time; never both added."""
    recorded_us: float | None
    """Of the ops that were chosen; None where no time was recorded: an ExecutionTrace, a captured plan."""
    total_us: float | None = None
    """Of the whole trace, whatever was chosen; None where no time was recorded, and in older files."""
    measured_us: float | None
    """None where nothing was measured."""
    simulated_us: dict[str, float] = {}
    unpredicted_share: dict[str, float] = {}
    """Of `recorded_us`, by SoC: what `simulated_us` leaves out; empty where no time was recorded."""
    losses: dict[str, int] = {}
    """What reading the file lost, by reason, such as "truncated file": all else is of the rest."""


class CollectivesResult(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of a job's ranks matched with each other over their whole traces; times in microseconds."""

    matched: int
    inferred: int
    """Of `matched`: by order or overlap in time, where no sequence number is recorded."""
    skew_us: float
    """Median over collectives, from the first start to the last."""
    waiting_us: float
    """Until the last of the known members had begun, all ranks and collectives together."""
    transfer_us: float
    ranks: tuple[RankSum, ...]
    clocks: tuple[Clock, ...]
    disagreements: int
    disagreeing: tuple[Disagreement, ...]
    """The first of them; `collective` is the position in the order of time."""
    missing: int
    """Most members of one collective whose traces were not given: then `waiting_us` is too low, `transfer_us` too high.
    """
    unmatched: int
    """Calls without a counterpart on another rank given."""


class JobResult(msgspec.Struct, frozen=True, kw_only=True, tag="job", tag_field="record"):
    """Sums over the ranks of one job."""

    job: str
    ranks: tuple[int, ...]
    world_size: int | None
    """As recorded; None where no rank says."""
    rank_from: str
    """"metadata", "file name", or "" for a trace that stands alone."""
    ops: int
    """Unique ops of all ranks."""
    rank_ops: int
    """Ops of the ranks added up: what would be run without merging them."""
    replayed: int
    covered_share: float | None
    """None where the clocks of its ranks differ: their times cannot be added."""
    clock: Literal["device", "host"] | None = None
    """Of its ranks; None where they differ, or nothing was recorded."""
    recorded_us: float | None
    measured_us: float | None
    """None where nothing was measured."""
    slowest_rank_us: float | None
    """Most recorded time of one rank; None like `recorded_us` where ranks have no common clock."""
    simulated_us: dict[str, float] = {}
    collectives: CollectivesResult | None = None
    """None where the traces share no collective, or none tells when it ran."""


class SharedStepResult(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of a step that overlap its calls, measured on ranks; times in microseconds, medians of the passes.

    The time of a pass is the slowest rank's. Passes with the collectives, without them, and of only them alternate.
    """

    ranks: int
    backend: str
    collectives: int
    """Calls of collectives in the step."""
    collectives_replayed: int
    recorded_us: float
    """Of those that were replayed, added up, with the waiting for other ranks."""
    waits_recorded: int
    """Of those replayed: how many were waited for where that was recorded."""
    waits_inferred: int
    """Before the first call that began after they had ended in the recording."""
    waits_unknown: int
    """At once, since nothing tells where."""
    in_flight_us: float
    """In which at least one collective was on."""
    waited_us: float
    """In which the calls waited for one."""
    hidden_us: float
    """In flight while nothing waited for it."""
    hidden_share_low: float | None = None
    hidden_share_high: float | None = None
    """Of a pass's time in flight, what is hidden in it: deciles 1 and 9 of the passes; None in older files."""
    calls_alone_us: float
    """Sum of the calls in passes without collectives."""
    wall_alone_us: float
    """Of such a pass."""
    collectives_alone_us: float
    """One after the other, without calls beside them."""
    unseen: int = 0
    """Collectives whose end is only seen when they are waited for: at most that long."""
    restarts: int = 0
    """Groups of ranks that broke before the step was over."""


class SequenceResult(msgspec.Struct, frozen=True, kw_only=True, tag="sequence", tag_field="record"):
    """A recorded step and its replay in recorded order; times in microseconds."""

    step: str
    """The annotation that marks it, "" for the whole trace."""
    steps: int
    """Recorded steps that it was chosen from."""
    calls: int
    """Of the step, those inside others left out."""
    calls_replayed: int
    calls_nested: int
    calls_cut: int
    """Calls beyond the limit of a sequence."""
    recorded_step_us: float
    """Wall time of the step."""
    recorded_us: float
    """Of the replayed calls, in the time that shares refer to: the device's where the trace has one."""
    recorded_host_us: float | None
    """None where nothing was recorded: the plan was captured."""
    left_out_share: float
    """Of the recorded time of the step: what is not in the sequence."""
    passes: int
    sum_us: float | None
    """Of all calls of one pass, the median of the passes; None where no pass was over."""
    sum_low_us: float | None
    sum_high_us: float | None
    """95 % interval of that median; None below six passes."""
    wall_us: float | None
    """Of one pass, with what happens between the calls, such as tensors that are freed."""
    tensors: Tensors
    restarts: int = 0
    """Processes that ended before the sequence was over."""
    shared: SharedStepResult | None = None
    """Where it ran on ranks: times of passes are then with the collectives beside the calls."""
    medians_us: float | None = None
    """Of all calls, each at the median of its op, as a table of ops adds them up: `sum_us` holds every interruption and
    slow call of a pass, this does not."""
    fresh_bytes: int = 0
    """Results of a pass of 128 kB and more, where a CPU was recorded: a program that does not keep freed memory, as a
    replay does, pays for the first touch of their pages in each step."""


class Summary(msgspec.Struct, frozen=True, kw_only=True, tag="summary", tag_field="record"):
    """The last line of a result file; a file without one was cut short. An interrupted run may be resumed."""

    ops: int
    replayed: int
    skipped: int
    failed: int
    reasons: dict[str, int]
    """Reason kind → number of ops."""
    not_replayed: tuple[ReasonTotal, ...] = ()
    """What each reason accounts for: unique ops, calls, share of recorded time."""
    covered_share: float
    """Share of recorded time that the replayed ops own."""
    recorded_us: float
    """Of all ops in the plan, all calls, in the time that `recorded_share` refers to."""
    measured_us: float | None
    """Of the replayed ops, median times count, in a sequence the median sum of a pass; None where nothing was
    measured."""
    simulated_us: dict[str, float]
    unpredicted_share: dict[str, float] = {}
    """Of the recorded time (of the ops, where none was recorded), by SoC: what `simulated_us` leaves out."""
    wall_s: float | None
    """None of a run that was killed before it could say."""
    interrupted: bool = False
    not_reached: int = 0
    """Ops of which an interrupted run says nothing: neither replayed, skipped nor failed."""


Record = Header | OpResult | Resumed | TraceResult | JobResult | SequenceResult | Summary


Agreement = Literal["match", "differ", "not recorded", "other device"]
"""Other device: the trace has kernels of an accelerator, and the op was replayed on one without, or the other way."""


class Fidelity(msgspec.Struct, frozen=True, kw_only=True):
    """One op: what ran here compared with what the trace recorded."""

    kernels: Agreement
    """Names of the device's kernels and how many of each a call launches."""
    children: Agreement
    """Names of the ops right below, in order."""
    missing: tuple[str, ...] = ()
    """Kernels, or where those cannot be compared child ops, that were recorded and did not run here."""
    extra: tuple[str, ...] = ()
    """Those that ran here and were not recorded."""
    time_ratio: float | None = None
    """Time here by the time recorded: of the kernels where both have them, of the host where neither has."""
    note: str = ""
    """Why there is no profile."""


class Tensors(msgspec.Struct, frozen=True, kw_only=True):
    """Where the calls' tensor arguments came from, and how long all calls took."""

    recorded: int = 0
    """Arguments whose memory was recorded; what the others are is inferred."""
    results: int = 0
    """Arguments that were a result of an earlier call."""
    views: int = 0
    """Arguments that were such a result with another shape."""
    outside_arguments: int = 0
    """Arguments that were a tensor from outside."""
    remade: int = 0
    """Arguments made anew for their call."""
    outside: int = 0
    """Tensors from outside, each with memory of its own."""
    recycled: int = 0
    """Further ones that lay in the memory of others."""
    refilled: int = 0
    """Tensors of a pass that were not finite or outside the domain of their reader, and were filled anew."""
    peak_bytes: int = 0
    budget_bytes: int = 0
