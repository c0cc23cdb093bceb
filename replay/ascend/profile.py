# pyright: strict
"""The values that cost functions use: a device flattened to plain floats, with its cost table by kernel type.

Owns the compiled form only; `devices.file` reads and checks the source files.
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
    """Rates and floors shared by all kernel types of one device. Units are in the field names; sources in the files."""

    launch_one_us: float
    """A kernel on one vector core that does next to nothing."""
    launch_full_us: float
    """The same on 40 vector cores."""
    launch_exponent: float
    """Between the two: ((blocks - 1) / 39) ** exponent."""
    cube_launch_us: float
    mix_launch_us: float
    """Kernels that use cube and vector cores together."""
    aicpu_us: float
    block_bytes: float
    """Bytes of the largest tensor per vector block."""
    hbm_efficiency: float
    """Share of the HBM's peak that vector kernels reach, reads and writes together."""
    hbm_mixed_cost: float
    """How much longer HBM takes for a byte when half of the bytes are read and half written than when all are of one
    kind, as a share."""
    loop_vector_share: float
    """Of what the launch of a vector kernel takes beyond one core's, what is left when its code is in the instruction
    caches and no neighbour is about, as in a loop."""
    kept_vector_share: float
    """The same in a network, of a kernel whose code ran shortly before."""
    loop_cube_share: float
    """The same for kernels that use cube cores."""
    hbm_cube_efficiency: float
    """The same for cube kernels."""
    core_hbm_bytes_per_cycle: float
    """What one core can draw from HBM."""
    cube_core_hbm_bytes_per_cycle: float
    """The same for a cube core."""
    l2_bytes_per_cycle: float
    """Reads and writes of one vector core that stay in L2."""
    vector_overlap: float
    """Norm by which a vector kernel's computing and moving overlap: 1 adds them."""
    resident_share: float
    """Share of a small kernel's bytes found in L2 when the state of the cache is not known."""
    resident_reach: float
    """Working set, as a multiple of the L2's size, at which that share has halved."""
    resident_sharpness: float
    weight_resident_share: float
    """Share of a product's second operand found in L2 when the state of the cache is not known: layers' weights are
    used once a step, and all of them together exceed any cache."""
    sequence_reach: float
    """Reuse distance, as a multiple of the L2's size, at which half of a tensor is still found there."""
    sequence_sharpness: float
    mac_efficiency: float
    l1_fill_bytes_per_cycle: float
    """GM to L1, each cube core, rows of 512 bytes or more, data in L2."""
    l1_fill_hbm_bytes_per_cycle: float
    """The same when the working set exceeds L2."""
    l1_narrow_exponent: float
    """Fall of that rate with (row bytes / 512)."""
    overlap_p: float
    """Norm by which the cube's pipes overlap: 1 adds them, infinity takes the longest."""
    fixpipe_bytes_per_cycle: float
    wave_us: float
    """Start-up of one wave of tiles."""
    split_depth: float
    """Depth K of a product at which half of what its pipes could overlap is lost: a long K is split, and each piece is
    added to the result in memory before the next one starts."""


Neighbour = tuple[float, float, float, float]
"""A measured kernel that says something of others of nearly its sizes (see `nearby`): (rows, columns, depth, pull).
Sizes are octaves above 1 over the octaves that likeness reaches; the pull is what it adds to the logarithm of the time
of a kernel of its own sizes, and others' pulls add to that."""


class Pipes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memories, paths and start costs of a core, for tile programs (see `replay.tile`); sources in `_pipes.toml`.

    Paths are in bytes per cycle and core; latencies and start costs in cycles unless the name says microseconds.
    """

    ub_bytes: float
    l1_bytes: float
    l0a_bytes: float
    l0b_bytes: float
    gm_to_ub: float
    """What L2 holds."""
    ub_to_gm: float
    gm_to_ub_miss: float
    """What comes from HBM, one core alone."""
    gm_to_l1: float
    l0c_to_gm: float
    l0c_to_l1: float
    l1_to_l0a: float
    l1_to_l0b: float
    l0_start: float
    """Of one move from L1 to L0A or L0B."""
    cube_start: float
    """Of one product."""
    l2_bytes_per_cycle: float
    """All cores together."""
    read_latency: float
    """From GM, found in L2."""
    miss_latency: float
    """From GM, found in HBM."""
    write_latency: float
    burst: float
    """Of each run of a copy with gaps."""
    l1_row: float
    """Least of each row that a matrix has as it comes into L1."""
    flag: float
    """From the end of an instruction on one pipe to the start of one that waits for it on another."""
    core_flag: float
    """The same between cores of a group."""
    issue: float
    """Of the scalar unit, each instruction."""
    start_us: float
    """A kernel on one core."""
    start_core_us: float
    """Each further core, of either kind."""


class FamilyCost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost constants of one family of kernel types on one device."""

    name: str
    form: Form
    cycles: float = 0.05
    """Cycles per element per core, 4-byte types."""
    half_ratio: float = 1.0
    """Factor on `cycles` for 2-byte floats, which vector cores widen first."""
    wide_ratio: float = 30.0
    """Factor on `cycles` for 8-byte integers, which vector cores have no instructions for."""
    row_cycles: float = 0.0
    """Cycles per row, run, image or index, as the form counts them."""
    row_alone_cycles: float = 0.0
    """The same of calls by themselves, before the factor of such calls; 0: as in networks."""
    fixed_us: float = 0.0
    """Passes, synchronisation and set-up beyond a bare launch."""
    fixed_alone_us: float = 0.0
    """The same of calls by themselves, before the factor of such calls; 0: as in networks."""
    launch_factor: float = 1.0
    """On what more blocks add to the launch: bigger programs start more slowly."""
    scale: float = 1.0
    """Correction learned for this SoC."""
    memory_factor: float = 1.0
    """On the time of moving bytes from and to HBM: access patterns that HBM serves badly."""
    row_block: float = 1.0
    """Least rows that one core takes, however few there are."""
    passes: float = 1.0
    """How often a row that a core's memory cannot hold is read."""
    spreads: bool = False
    """A copy that repeats what it reads: its runs are those of its output."""
    native_half: bool = False
    """float16 is computed as it is, two numbers in the place of one of float32; elsewhere it is widened first."""
    hf32: bool = False
    """float32 inputs run at the HF32 rate."""
    nearby: dict[str, tuple[Neighbour, ...]] = {}
    """Kernels measured on this SoC, by kind."""
    samples: int = 0
    """Unique kernels of this family measured on this SoC."""
    samples_elsewhere: int = 0
    measured_here: tuple[str, ...] = ()
    """Its kernel types that were measured on this SoC, in networks or as single calls."""
    measured_elsewhere: tuple[str, ...] = ()
    """Its kernel types that were measured on other SoCs."""
    least_elements: float = 0.0
    most_elements: float = 0.0
    """Of the largest operand, over all kernels of this family measured on any SoC; 0 where there are none."""
    dtypes: tuple[str, ...] = ()
    """Of those operands; "half" is float16 and bfloat16."""
    states: tuple[str, ...] = ()
    """What the caches held when kernels of it were measured on this SoC."""
    band: float = 2.0
    """Factor up and down of the 80 % band of what does not follow from cells: collectives, copies of the host, unknown
    kernels."""


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
    """Of "factor": on the whole time."""
    cycles: float = 0.0
    """Cycles an element: of one core's share ("lines", "steps"), or of all results ("serial", "dealt")."""
    row_cycles: float = 0.0
    """Cycles a line of the inner dimensions ("lines"), or a step along the dimension ("steps")."""
    start_us: float = 0.0
    """Of "lines" and "steps": before the first."""
    dtype: str = ""
    """Of "like": dtype of the first operand."""
    elements: tuple[float, float] = (0.0, 0.0)
    """Of "like": least and most elements of the first operand."""
    lengths: tuple[float, float] = (0.0, 0.0)
    """Least and most elements along the dimension at which it was measured; 0 where the length does not matter."""
    vector_bytes: float = 0.0
    """Of devices whose vector instructions take so many bytes; 0 where it is not known to depend on them."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of connection between dies."""

    bytes_per_s: float
    """One direction, achieved."""
    latency_us: float


class ClusterLink(msgspec.Struct, frozen=True, kw_only=True):
    """Links of one level of a described cluster."""

    transport: str
    bytes_per_s: float
    """Of a mesh from a die to each other one, else of a die."""
    latency_us: float
    mesh: bool = False


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Servers with a fixed number of dies each; links that are not given are those of the SoC."""

    name: str
    servers: int
    dies: int
    inside: ClusterLink | None = None
    between: ClusterLink | None = None


class OwnMeasurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call that a user measured on the device, and its prediction without any of the user's measurements.

    Times are in microseconds, of one call.
    """

    call: str
    """In opreplay's notation."""
    op: str
    """The kernel types that an aten op runs, else the op's name."""
    family: str
    """Kernel family that takes most of the time."""
    l2: Literal["cold", "loop", "warm"]
    """What the L2 cache held when the call was measured."""
    measured_us: float
    spread: float = 0.0
    """Of the repeats, relative to `measured_us`."""
    predicted_us: float
    """Of the call alone, in the same state of the cache."""
    network_us: float
    """By the constants of kernels in networks, in the same state of the cache."""
    band: float
    """Factor of the 80 % band of `predicted_us`."""

    def __post_init__(self) -> None:
        times = (self.measured_us, self.predicted_us, self.network_us)
        if not all(LEAST_MEASURED_US <= time_us <= MOST_MEASURED_US for time_us in times):
            raise ValueError(f"times of a measured call must be {LEAST_MEASURED_US:g} to {MOST_MEASURED_US:g} us")
        if not (1.0 <= self.band <= MOST_BAND and 0.0 <= self.spread < math.inf):
            raise ValueError(f"band must be 1 to {MOST_BAND:g}, spread 0 or more")


LEAST_MEASURED_US, MOST_MEASURED_US, MOST_BAND = 1e-3, 1e12, 1e6
"""Bounds of the numbers of a measured call in a device file, within which logarithms of their ratios stay small."""


class DeviceProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated SoC with all values that predictions need."""

    name: str
    title: str
    version: str
    aic_cores: int
    aiv_cores: int
    freq_hz: float
    macs_per_cycle: dict[str, float]
    """Per cube core, by dtype name; "hf32" for float32 in reduced precision."""
    l2_bytes: float
    hbm_bytes: float
    hbm_bytes_per_s: float
    l0c_bytes: float
    link: Link
    rates: Rates
    pipes: Pipes
    families: dict[str, FamilyCost]
    """By family name."""
    types: dict[str, str]
    """CANN kernel type → family name."""
    datasheet: dict[str, Quantity]
    """The numbers as the file gives them, for `list devices NAME`."""
    slow_paths: dict[str, tuple[SlowPath, ...]] = {}
    """CANN kernel type → slow paths of the library that it may take."""
    own_slow_paths: tuple[SlowPath, ...] = ()
    """Those that the device's own file gives."""
    is_own_fit: bool = False
    """Whether a user's file gives constants of its own: then no measured calls of others correct them."""
    measured: tuple[OwnMeasurement, ...] = ()
    """Calls that the user measured on it: they adjust all other predictions."""
    aliases: tuple[str, ...] = ()
    generation: str = ""
    """What devices have that differ in numbers of cores, clock and memory alone: they share what is fitted to any."""
    vector_width: float = 1.0
    """Of a vector core's instructions, relative to the 128 bytes a cycle that constants were fitted at."""
    plain_convolution: float | None = None
    """How much longer a convolution takes that reads plain layouts itself; None where they are converted for it."""
    server_dies: int = 8
    """Dies that `link` connects with each other."""
    peer_bytes_per_s: float | None = None
    """Of a die's link to one peer, where the server is a full mesh; None for a switch."""
    pair_link: Link | None = None
    """Between the two dies of a package."""
    far_link: Link | None = None
    """Between servers; None where `link` goes on."""
    cluster: Cluster | None = None
    """What it is a die of; None where nobody said: then servers are of `server_dies`, as many as needed."""

    def __repr__(self) -> str:
        """Return only the name: all numbers would fill pages."""
        return f"DeviceProfile(name={self.name!r}, version={self.version!r})"

    @property
    def kind(self) -> str:
        """The group of devices on which isolated calls behave alike: "910", or "950" with its wider vectors."""
        return "910" if self.vector_width == 1.0 else "950"

    def family(self, kernel_type: str) -> FamilyCost:
        """Return the cost constants for a kernel type; those of "Unknown" if the type is not registered."""
        return self.families[self.types.get(kernel_type, "Unknown")]


Trust = Literal["datasheet", "measured", "fitted", "assumed"]
"""Where a number stands: from a vendor's configuration or datasheet; measured directly and quoted; fitted to kernel
measurements by this project's calibration; assumed, by analogy or judgement."""


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
            raise ValueError(f"an exponent is {MOST_EXPONENT} at most")
        if not self.unit or not self.source:
            raise ValueError("unit and source must not be empty")
