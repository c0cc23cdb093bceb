# pyright: strict
"""The values that cost functions use: a device as plain floats, with its cost constants by kernel type.

Contains only the compiled form; `devices.file` reads and checks the source files.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

Form = Literal[
    "elementwise",
    "optimizer",
    "foreach",
    "rowwise",
    "reduce",
    "copy",
    "transpose",
    "transdata",
    "gather",
    "sort",
    "pool",
    "fill",
    "matmul",
    "conv",
    "attention",
    "collective",
    "aicpu",
    "free",
    "host",
]
"""How the work of a kernel type is counted (see `cost`)."""


class Rates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rates and floors shared by all kernel types of one device. Units are in the field names, sources in the files."""

    launch_one_us: float
    """Time of a kernel that does almost nothing, on one vector core."""
    launch_full_us: float
    """Time of a kernel that does almost nothing, on 40 vector cores."""
    launch_exponent: float
    """Exponent of the interpolation between `launch_one_us` and `launch_full_us`: ((blocks - 1) / 39) ** exponent."""
    cube_launch_us: float
    mix_launch_us: float
    """Launch time of kernels that use cube and vector cores together."""
    aicpu_us: float
    block_bytes: float
    """A kernel uses one vector core for every `block_bytes` bytes of its largest tensor."""
    hbm_efficiency: float
    """Share of the HBM peak that vector kernels reach, for reads and writes together."""
    hbm_mixed_cost: float
    """Relative increase of the HBM time per byte if half of the bytes are reads and half are writes."""
    loop_vector_share: float
    """Factor on the launch time of a vector kernel in a loop, for the part that exceeds a launch on one core.

    In a loop, a kernel launches faster, because its code is in the instruction caches and no other kernel runs.
    """
    kept_vector_share: float
    """Factor like `loop_vector_share`, but for a kernel in a network. It applies if the same kernel code ran shortly
    before.
    """
    loop_cube_share: float
    """Factor like `loop_vector_share`, for kernels that use cube cores."""
    hbm_cube_efficiency: float
    """Share of the HBM peak that cube kernels reach."""
    core_hbm_bytes_per_cycle: float
    """Bytes per cycle that one core can read from HBM."""
    cube_core_hbm_bytes_per_cycle: float
    """Bytes per cycle that one cube core can read from HBM."""
    l2_bytes_per_cycle: float
    """Bytes per cycle that one vector core reads and writes if the data is in L2."""
    vector_overlap: float
    """Exponent of the norm that combines computing and data movement of a vector kernel; 1 means no overlap."""
    resident_share: float
    """Share of a small kernel's bytes found in L2 if the state of the cache is unknown."""
    resident_reach: float
    """Working set, as a multiple of the L2 size, at which the share found in L2 is half of `resident_share`."""
    resident_sharpness: float
    weight_resident_share: float
    """Share of a product's second operand found in L2 if the state of the cache is unknown.

    It is small because each layer's weights are used once per step, and the weights of all layers together exceed any
    cache.
    """
    sequence_reach: float
    """Reuse distance, as a multiple of the L2 size, at which half of a tensor is still found in L2."""
    sequence_sharpness: float
    mac_efficiency: float
    l1_fill_bytes_per_cycle: float
    """Bytes per cycle from GM to L1 per cube core, for rows of 512 bytes or more and data in L2."""
    l1_fill_hbm_bytes_per_cycle: float
    """Bytes per cycle that a cube core moves from GM to L1 if the working set is larger than L2."""
    l1_narrow_exponent: float
    """Exponent of (row bytes / 512), the factor by which short rows reduce the rate from GM to L1."""
    overlap_p: float
    """Exponent of the norm that combines the cube's pipes; 1 means no overlap, infinity full overlap."""
    fixpipe_bytes_per_cycle: float
    wave_us: float
    """Start-up time of one wave of tiles."""
    split_depth: float
    """Depth K of a product at which half of the overlap of the cube's pipes is lost.

    A long K is split, and each piece is added to the result in memory before the next piece starts.
    """


Neighbour = tuple[float, float, float, float]
"""A measured kernel that corrects kernels of similar sizes (see `nearby`), as (rows, columns, depth, weight).

Sizes are base-2 logarithms, divided by the range in octaves within which kernels count as similar. The weight is the
neighbour's contribution to the log time of a kernel of its own sizes. Contributions of several neighbours add up.
"""


class Pipes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memories, paths and start costs of a core, for tile programs (see `replay.tile`).

    Sources are in `_pipes.toml`. Paths are in bytes per cycle and core. Latencies and start costs are in cycles unless
    the name says microseconds.
    """

    ub_bytes: float
    l1_bytes: float
    l0a_bytes: float
    l0b_bytes: float
    gm_to_ub: float
    """Rate from GM to UB for data in L2."""
    ub_to_gm: float
    gm_to_ub_miss: float
    """Rate from GM to UB for data in HBM if only one core is active."""
    gm_to_l1: float
    l0c_to_gm: float
    l0c_to_l1: float
    l1_to_l0a: float
    l1_to_l0b: float
    l0_start: float
    """Start cost of one move from L1 to L0A or L0B."""
    cube_start: float
    """Start cost of one matrix product."""
    l2_bytes_per_cycle: float
    """L2 bandwidth of all cores together."""
    read_latency: float
    """Latency of a read from GM that hits L2."""
    miss_latency: float
    """Latency of a read from GM that goes to HBM."""
    write_latency: float
    burst: float
    """Cost of each contiguous run of a copy with gaps."""
    l1_row: float
    """Minimum cost of each row of a matrix loaded into L1."""
    flag: float
    """Latency from the end of an instruction on one pipe to the start of an instruction on another pipe that waits for
    it.
    """
    core_flag: float
    """Latency like `flag`, but between cores of a group."""
    issue: float
    """Issue cost of each instruction on the scalar unit."""
    start_us: float
    """Start time of a kernel on one core."""
    start_core_us: float
    """Start time added by each further core, cube or vector."""


class FamilyCost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost constants of one family of kernel types on one device."""

    name: str
    form: Form
    cycles: float = 0.05
    """Cycles per element per core for 4-byte dtypes."""
    half_ratio: float = 1.0
    """Factor on `cycles` for 2-byte floats, which vector cores widen first."""
    wide_ratio: float = 30.0
    """Factor on `cycles` for 8-byte integers, for which vector cores have no instructions."""
    row_cycles: float = 0.0
    """Cycles per row, run, image or index, depending on the form."""
    row_alone_cycles: float = 0.0
    """`row_cycles` for isolated calls, before it is multiplied by the factor for isolated calls. 0 means that
    `row_cycles` itself is used.
    """
    fixed_us: float = 0.0
    """Time for passes, synchronisation and set-up in addition to a bare launch."""
    fixed_alone_us: float = 0.0
    """`fixed_us` for isolated calls, before it is multiplied by the factor for isolated calls. 0 means that `fixed_us`
    itself is used.
    """
    launch_factor: float = 1.0
    """Factor on the part of the launch time that additional blocks add. It exists because larger programs start more
    slowly.
    """
    scale: float = 1.0
    """Correction factor on the time, fitted for this SoC's generation."""
    memory_factor: float = 1.0
    """Factor on the time to move bytes from and to HBM, for access patterns that HBM handles badly."""
    row_block: float = 1.0
    """Minimum number of rows that the busiest core gets; all rows if there are fewer."""
    passes: float = 1.0
    """How often a row that does not fit into a core's memory is read."""
    spreads: bool = False
    """Whether a copy repeats its input. If so, only contiguous runs of the output count as rows."""
    native_half: bool = False
    """Whether vector cores compute float16 without widening it, processing two elements in place of one float32."""
    hf32: bool = False
    """Whether float32 inputs run at the HF32 rate."""
    nearby: dict[str, tuple[Neighbour, ...]] = {}
    """Neighbours of the family, by kind. They are kernels measured on this SoC's generation, and correct predictions
    for similar kernels.
    """
    samples: int = 0
    """Number of unique kernels of this family that were measured on this SoC."""
    samples_elsewhere: int = 0
    measured_here: tuple[str, ...] = ()
    """Kernel types of the family that were measured on this SoC, in networks or as single calls."""
    measured_elsewhere: tuple[str, ...] = ()
    """Kernel types of the family that were measured on other SoCs."""
    least_elements: float = 0.0
    most_elements: float = 0.0
    """Number of elements of the largest operand among all kernels of this family measured on any SoC; 0 if none was
    measured.
    """
    dtypes: tuple[str, ...] = ()
    """Dtypes of the largest operands of all kernels of this family measured on any SoC. "half" stands for float16 and
    bfloat16.
    """
    states: tuple[str, ...] = ()
    """Cache states in which kernels of the family were measured on this SoC."""
    band: float = 2.0
    """Factor of the 80 % band: predicted times are divided and multiplied by it.

    It is used only for families whose band does not follow from evidence: collectives, host copies, unknown kernels.
    """


When = Literal[
    "short rows",
    "inside of four dimensions",
    "always",
    "middle dimension",
    "innermost dimension",
    "long rows",
    "unaligned float32 operands",
    "one column",
    "like",
    "operands of different shapes",
]
How = Literal["factor", "lines", "steps", "serial", "dealt"]


class SlowPath(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One slow path of the kernel library."""

    name: str
    types: tuple[str, ...]
    when: When
    how: How
    source: str
    confidence: Trust
    factor: float = 1.0
    """Factor on the whole time, if `how` is "factor"."""
    cycles: float = 0.0
    """Cycles per element. If `how` is "lines" or "steps", the elements are those of one core's share. If it is "serial"
    or "dealt", they are those of all results.
    """
    row_cycles: float = 0.0
    """If `how` is "lines", cycles per line of the inner dimensions. If it is "steps", cycles per step along the
    dimension.
    """
    start_us: float = 0.0
    """Time before the first line or step starts, if `how` is "lines" or "steps"."""
    dtype: str = ""
    """Dtype of the first operand, if `when` is "like"."""
    elements: tuple[float, float] = (0.0, 0.0)
    """Minimum and maximum number of elements of the first operand, if `when` is "like"."""
    lengths: tuple[float, float] = (0.0, 0.0)
    """Minimum and maximum length of the dimension at which the path was measured; 0 if the length does not matter."""
    vector_bytes: float = 0.0
    """Vector instruction width, in bytes, of the devices that have this path. It is 0 if the path is not known to
    depend on the width.
    """


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of connection between dies."""

    bytes_per_s: float
    """Achieved bytes per second in one direction."""
    latency_us: float


class ClusterLink(msgspec.Struct, frozen=True, kw_only=True):
    """Links of one network level of a described cluster."""

    transport: str
    bytes_per_s: float
    """Bytes per second. In a mesh, from one die to each other die; otherwise the total rate of a die."""
    latency_us: float
    mesh: bool = False


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Servers with a fixed number of dies each. Links that the cluster file does not give are those of the SoC."""

    name: str
    servers: int
    dies: int
    inside: ClusterLink | None = None
    between: ClusterLink | None = None


class OwnMeasurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call that a user measured on the device, and its prediction without any of the user's measurements.

    Times are in microseconds per call.
    """

    call: str
    """The call in opreplay's notation."""
    op: str
    """For an aten op, the types of the kernels that it runs; for any other op, its name."""
    family: str
    """Kernel family with the largest share of the time."""
    l2: Literal["cold", "loop", "warm"]
    """State of the L2 cache when the call was measured."""
    measured_us: float
    spread: float = 0.0
    """Spread of the repetitions, relative to `measured_us`."""
    predicted_us: float
    """Prediction for the isolated call in cache state `l2`."""
    network_us: float
    """Prediction with the constants of kernels in networks, for the same cache state `l2`."""
    band: float
    """Factor of the 80 % band of `predicted_us`."""

    def __post_init__(self) -> None:
        times = (self.measured_us, self.predicted_us, self.network_us)
        if not all(LEAST_MEASURED_US <= time_us <= MOST_MEASURED_US for time_us in times):
            raise ValueError(f"times of a measured call must be {LEAST_MEASURED_US:g} to {MOST_MEASURED_US:g} us")
        if not (1.0 <= self.band <= MOST_BAND and 0.0 <= self.spread < math.inf):
            raise ValueError(f"band must be 1 to {MOST_BAND:g}, spread 0 or more")


LEAST_MEASURED_US, MOST_MEASURED_US, MOST_BAND = 1e-3, 1e12, 1e6
"""Limits on the times and bands of measured calls in a device file. They keep the logarithms of their ratios small."""


class DeviceProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated SoC with all values that predictions need."""

    name: str
    title: str
    version: str
    aic_cores: int
    aiv_cores: int
    freq_hz: float
    macs_per_cycle: dict[str, float]
    """Multiply-accumulates per cycle of a cube core, by dtype name; "hf32" is float32 in reduced precision."""
    l2_bytes: float
    hbm_bytes: float
    hbm_bytes_per_s: float
    l0c_bytes: float
    link: Link
    rates: Rates
    pipes: Pipes
    families: dict[str, FamilyCost]
    """Cost constants by family name."""
    types: dict[str, str]
    """CANN kernel type → family name."""
    datasheet: dict[str, Quantity]
    """Datasheet numbers as given in the file, for `list devices NAME`."""
    slow_paths: dict[str, tuple[SlowPath, ...]] = {}
    """CANN kernel type → slow paths of the library that it may take."""
    own_slow_paths: tuple[SlowPath, ...] = ()
    """Slow paths given in the device file."""
    shipped_name: str = ""
    """Name of the shipped device with this datasheet and these constants; "" if there is none."""
    is_own_fit: bool = False
    """Whether a user's file gives constants that differ from those of every shipped device.

    If so, shipped measured calls do not correct predictions.
    """
    measured: tuple[OwnMeasurement, ...] = ()
    """Calls that the user measured on the device; they adjust all other predictions."""
    aliases: tuple[str, ...] = ()
    generation: str = ""
    """Group of devices that share fitted constants, because they differ only in numbers of cores, clock and memory."""
    vector_width: float = 1.0
    """Width of a vector core's instructions, relative to the 128 bytes per cycle of the devices used for the fit."""
    plain_convolution: float | None = None
    """Factor on the time of a convolution that reads plain layouts; None if layouts are converted first."""
    server_dies: int = 8
    """Number of dies that `link` connects."""
    peer_bytes_per_s: float | None = None
    """Bytes per second of a die's link to one peer if the server is a full mesh; None for a switch."""
    pair_link: Link | None = None
    """Link between the two dies of a package."""
    far_link: Link | None = None
    """Link between servers; None if `link` also connects servers."""
    cluster: Cluster | None = None
    """Cluster that contains the device. If None, there are as many servers of `server_dies` dies as a group needs."""

    def __repr__(self) -> str:
        """Return only the name and version, because all numbers would fill pages."""
        return f"DeviceProfile(name={self.name!r}, version={self.version!r})"

    @property
    def kind(self) -> str:
        """Return the group of devices that share constants for isolated calls: "910", or "950" with wider vectors."""
        return "910" if self.vector_width == 1.0 else "950"

    def family(self, kernel_type: str) -> FamilyCost:
        """Return the cost constants for a kernel type; the constants of "Unknown" if the type is not registered."""
        return self.families[self.types.get(kernel_type, "Unknown")]


Trust = Literal["datasheet", "measured", "fitted", "assumed"]
"""Source of a number, as one of four words.

"datasheet": a datasheet or configuration of the vendor. "measured": measured directly and quoted. "fitted": fitted to
kernel measurements by this project's calibration. "assumed": set by analogy or judgement.
"""


MOST_EXPONENT = 100


class Quantity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One number of a device file or model file."""

    value: float
    unit: str
    source: str
    confidence: Trust

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError("value must be a finite number")
        if self.unit == "exponent" and abs(self.value) > MOST_EXPONENT:
            raise ValueError(f"an exponent must be at most {MOST_EXPONENT}")
        if not self.unit or not self.source:
            raise ValueError("unit and source must not be empty")
