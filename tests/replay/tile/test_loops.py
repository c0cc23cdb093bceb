"""Loops whose bodies look at positions: recorded by what they do, the same as with every iteration run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from opreplay.replay.ascend import load_device
from opreplay.replay.tile import programs
from opreplay.replay.tile.cases import base_cases, default_set
from opreplay.replay.tile.chip import TileTime, estimate
from opreplay.replay.tile.language.places import TileError
from opreplay.replay.tile.program import Bound, Program, bind
from opreplay.traces.model import TensorMeta

pytestmark = pytest.mark.slow

SHIPPED: dict[str, Program] = {name: getattr(programs, name) for name in programs.__all__}
DEVICE = load_device("910b3")


def same_as_unrolled(bound: Bound, cores: int | None) -> TileTime | None:
    """Hold an estimate against that of all iterations run; None where both break the same limit."""
    outcomes: list[Any] = []
    for every in (False, True):
        try:
            outcomes.append(estimate(bound, DEVICE, cores=cores, every=every))
        except TileError as error:
            outcomes.append((error.limit, error.line, error.message))
    quick, full = outcomes
    if not isinstance(quick, TileTime) or not isinstance(full, TileTime):
        assert quick == full
        return None
    for name in ("time_us", "overlapped_us", "serial_us", "hbm_us", "l2_us"):
        assert getattr(quick, name) == pytest.approx(getattr(full, name), rel=1e-9), name
    assert quick.pipes == pytest.approx(full.pipes, rel=1e-6)
    assert (quick.buffers, quick.cores, quick.bound) == (full.buffers, full.cores, full.bound)
    return quick


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_programs_take_the_time_of_all_iterations(name: str) -> None:
    program = SHIPPED[name]
    for case in default_set(program, base_cases(program)[0]):
        for cores in (None, 2):
            same_as_unrolled(bind(program, case.arguments, case.settings), cores)


@pytest.mark.parametrize(("bq", "bkv", "rows"), [(128, 512, 2048), (128, 128, 1408), (64, 256, 1500)])
def test_causal_attention_takes_the_time_of_all_iterations(bq: int, bkv: int, rows: int) -> None:
    x = TensorMeta(shape=(1, rows, 64), dtype="float16")
    bound = bind(SHIPPED["flash_attention"], {"q": x, "k": x, "v": x, "causal": True}, {"bq": bq, "bkv": bkv})
    quick = same_as_unrolled(bound, 2)
    assert quick is not None
    assert any("counted, not run" in note for note in quick.notes)


def body(
    *lines: str, loop: str = "for c in tile.steps(x.shape[1], 32):", before: str = "pass", after: str = "pass"
) -> str:
    text = "".join(f"            {line}\n" for line in lines)
    return (
        '@tile.kernel("mylib::k", reference=lambda x: x)\n'
        "def k(x, y: tile.Out):\n"
        f"    {before}\n"
        "    for r in tile.blocks(x.shape[0], 32):\n"
        f"        {loop}\n{text}"
        f"    {after}\n"
    )


STORED = "tile.store(y[r, c], t)"
LOADED = "t = tile.load(x[r, c])"
TWICE = "t = t * 2.0"
PROGRAMS: dict[str, str] = {
    "below, on and above the diagonal": body(
        "if c.stop <= r.start:",
        "    tile.store(y[r, c], tile.load(x[r, c]))",
        "elif c.start < r.stop:",
        "    tile.store(y[r, c], tile.load(x[r, c]) * 2.0)",
    ),
    "only up to the diagonal": body(LOADED, TWICE, STORED, loop="for c in tile.steps(r.stop, 32):"),
    "from the diagonal on": body(LOADED, STORED, loop="for c in tile.steps((r.start, x.shape[1]), 48):"),
    "a window around the diagonal": body(
        LOADED, STORED, loop="for c in tile.steps((max(0, r.start - 80), min(x.shape[1], r.stop + 80)), 16):"
    ),
    "left at the diagonal": body("if c.start > r.start:", "    break", LOADED, STORED),
    "every third block": body(LOADED, f"if c.index % 3 == 1: {TWICE}", STORED),
    "a number of each block": body(LOADED, f"for _ in range(r.index % 4): {TWICE}", STORED),
    "a table by block": body(
        LOADED, f"if table[r.index]: {TWICE}", STORED, before="table = [i in (3, 4, 11) for i in range(100)]"
    ),
    "as float": body(LOADED, f"if float(c.start) * 0.5 > 40 + r.start / 3: {TWICE}", STORED),
    "a first block that differs": body(
        LOADED, "total = t * 1.0 if total is None else total + t", STORED, before="total = None", after="total * 2.0"
    ),
    "a load ahead": body(
        "t, ahead = ahead, tile.load(x[r, c])",
        "if t is not None: tile.store(y[r, c], t)",
        before="ahead = None",
    ),
    "many buffers": body("t = tile.load(x[r, c], buffers=5)", f"if c.start < r.start: {TWICE}", STORED),
    "a loop in the loop": body(
        "for i in tile.steps(c.size, 8):",
        "    if i.start + c.start < r.start + 40: tile.store(y[r, c], tile.load(x[r, c]))",
        "    else: tile.store(y[r, c], tile.load(x[r, c]) + 1.0)",
    ),
    "out of bounds at last": body("t = tile.load(x[r.start : r.start + 33, c])"),
    "too large at last": body(
        "if r.start >= 640: u = [tile.zeros((64, 600)), tile.zeros((64, 600))]", LOADED, STORED
    ),
    "its own results": body(LOADED, STORED, "if r.start > 64: u = tile.load(y[r, c]) + 1.0"),
    "the core": body(LOADED, f"if tile.core_id() == 1: {TWICE}", STORED),
}  # fmt: skip


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize("shape", [(704, 704), (672, 1000), (1000, 500)])
def test_a_program_takes_the_time_of_all_iterations(
    kind: str, shape: tuple[int, int], programs_of: Callable[[str], tuple[Program, ...]]
) -> None:
    (program,) = programs_of(PROGRAMS[kind])
    same_as_unrolled(bind(program, {"x": TensorMeta(shape=shape, dtype="float32")}), 3)


@pytest.mark.parametrize(
    ("name", "shapes", "more"),
    [
        ("flash_attention", {"q": (1, 32768, 128), "k": (1, 32768, 128), "v": (1, 32768, 128)}, {"causal": True}),
        ("causal_conv1d", {"x": (16384, 8192), "w": (4, 8192)}, {}),
    ],
)
def test_large_sizes_take_about_a_second(name: str, shapes: dict[str, tuple[int, ...]], more: dict[str, Any]) -> None:
    bound = bind(SHIPPED[name], {k: TensorMeta(shape=v, dtype="float16") for k, v in shapes.items()} | more)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        estimate(bound, DEVICE)
        seconds.append(time.process_time() - start)
    # A second on a machine of its own; processor time grows where others share its caches.
    assert min(seconds) < 4.0
