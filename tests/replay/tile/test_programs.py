"""The programs that ship: values in every dtype over odd shapes, and times that hold together."""

from __future__ import annotations

import pytest

from opreplay.replay.ascend import load_device
from opreplay.replay.tile import programs
from opreplay.replay.tile.cases import base_cases, default_set
from opreplay.replay.tile.check import check
from opreplay.replay.tile.chip import estimate
from opreplay.replay.tile.program import Program, bind
from opreplay.traces.model import TensorMeta

pytestmark = pytest.mark.slow

SHIPPED: dict[str, Program] = {name: getattr(programs, name) for name in programs.__all__}
DEVICE = load_device("910b3")


@pytest.mark.parametrize("name", SHIPPED)
def test_values_are_those_of_the_reference(name: str) -> None:
    program = SHIPPED[name]
    cases = default_set(program, base_cases(program)[0])
    assert {d for c in cases for v in c.arguments.values() if isinstance(v, TensorMeta) for d in [v.dtype]} >= set(
        program.dtypes
    )
    for case in cases:
        # A difference beyond the dtype's tolerance raises, with the line.
        assert check(bind(program, case.arguments, case.settings), DEVICE).allowed, case.text


@pytest.mark.parametrize("name", SHIPPED)
def test_times_are_ordered_and_buffers_fit(name: str) -> None:
    program = SHIPPED[name]
    for case in base_cases(program):
        for soc in ("910b3", "950pr"):
            made = estimate(bind(program, case.arguments), load_device(soc))
            assert 0 < made.launch_us < made.overlapped_us <= made.time_us <= made.serial_us
            assert made.pipes
            assert all(0 < share <= 1 for share in made.pipes.values())
            assert all(0 < used <= there for used, there in made.buffers.values())
            assert made.time_us >= made.launch_us + max(made.hbm_us, made.l2_us)


def test_a_scalar_holds_its_core_up_and_is_the_longest_that_it_may_be() -> None:
    shapes = {"q": (2, 16, 128), "k": (512, 128, 2, 128), "v": (512, 128, 2, 128)}
    tensors = {name: TensorMeta(shape=shape, dtype="float16") for name, shape in shapes.items()}

    def us(pages: int) -> float:
        numbers = {"table": (2, pages), "lengths": (2,)}
        numbers = {name: TensorMeta(shape=shape, dtype="int32") for name, shape in numbers.items()}
        made = estimate(bind(SHIPPED["paged_decode"], tensors | numbers), DEVICE)
        assert made.pipes["scalar"] * made.time_us > pages * DEVICE.pipes.read_latency / DEVICE.freq_hz * 1e6
        return made.time_us

    assert us(64) > 1.8 * us(32)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("matmul", {"a": (8192, 8192), "b": (8192, 8192)}),
        ("flash_attention", {"q": (1, 32768, 128), "k": (1, 32768, 128), "v": (1, 32768, 128)}),
    ],
)
def test_large_sizes_take_about_a_second_at_most(name: str, arguments: dict[str, tuple[int, ...]]) -> None:
    import time

    bound = bind(SHIPPED[name], {k: TensorMeta(shape=v, dtype="float16") for k, v in arguments.items()})
    seconds = []
    for _ in range(3):
        start = time.process_time()
        made = estimate(bound, DEVICE)
        seconds.append(time.process_time() - start)
    # Half a second on a machine of its own, once all is imported; processor time grows where others share its caches,
    # and running every block would take minutes.
    assert min(seconds) < 4.0
    assert made.time_us > 1000
    assert any("counted, not run" in note for note in made.notes)


TILINGS = {"one block a load": {"bk": 64, "buffers": 1}, "two": {"bk": 128}, "four": {"bk": 256}}


@pytest.mark.parametrize(
    ("soc", "cores", "measured_us"),
    [
        ("910b1", 24, {"one block a load": 12541.2, "two": 5039.9, "four": 4156.8}),
        ("950pr", 32, {"one block a load": 4294.6, "two": 2668.2, "four": 2591.4}),
    ],
)
def test_slopes_between_tilings_of_a_product(soc: str, cores: int, measured_us: dict[str, float]) -> None:
    """Matmul of 8192 whose second matrix lies transposed (asc-devkit)."""
    a = TensorMeta(shape=(8192, 8192), dtype="float16")
    arguments = {"a": a, "b": TensorMeta(shape=(8192, 8192), dtype="float16", strides=(1, 8192))}
    device = load_device(soc)
    ratios = [
        measured_us[name]
        / estimate(bind(SHIPPED["matmul"], arguments, tiling), device, state="warm", cores=cores).time_us
        for name, tiling in TILINGS.items()
    ]
    assert max(ratios) / min(ratios) < 1.25


def test_what_is_left_out_is_what_running_all_would_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops run in full and scheduled one by one take the same time as those that are extrapolated."""
    from opreplay.replay.tile import pipes
    from opreplay.replay.tile.language import recording

    meta = TensorMeta(shape=(1024, 2560), dtype="float16")
    other = TensorMeta(shape=(2560, 768), dtype="float16")
    quick = estimate(bind(SHIPPED["matmul"], {"a": meta, "b": other}), DEVICE)
    monkeypatch.setattr(recording, "LONGEST_PERIOD", 0)
    monkeypatch.setattr(pipes, "MOST_REPETITIONS", 1 << 30)
    full = estimate(bind(SHIPPED["matmul"], {"a": meta, "b": other}), DEVICE)
    assert quick.notes
    assert not full.notes
    assert quick.time_us == pytest.approx(full.time_us, rel=1e-3)
    assert quick.pipes == pytest.approx(full.pipes, rel=1e-2)


def test_a_loop_that_changes_in_the_middle_is_run_in_full(programs_of) -> None:
    (program,) = programs_of(
        '@tile.kernel("mylib::k", reference=lambda x: x)\n'
        "def k(x, y: tile.Out, *, rows=1):\n"
        "    for r in tile.blocks(x.shape[0], 1000):\n"
        "        for i, s in enumerate(tile.steps((0, 1000), rows)):\n"
        "            t = tile.load(x[s])\n"
        "            for _ in range(20 if 300 < s.start < 700 else 1):\n"
        "                t = t * 1.0\n"
        "            tile.store(y[s], t)\n"
    )
    made = estimate(bind(program, {"x": TensorMeta(shape=(1000, 64), dtype="float32")}), DEVICE)
    # 399 iterations of 20 instructions of 21 cycles and more.
    assert made.time_us * DEVICE.freq_hz / 1e6 > 399 * 20 * 21


BRANCHES = {
    "a counter of its own": ("for i, s in enumerate(tile.steps((0, 4000), 1)):", "i % 16 == 3"),
    "a number it adds to": ("for s in tile.steps((0, 4000), 1):\n            n += 1", "n % 50 == 7"),
    "a position": ("for s in tile.steps((0, 2000), 1):", "s.start in (300, 301, 302, 999)"),
}


@pytest.mark.parametrize("kind", BRANCHES)
def test_a_loop_that_branches_is_not_taken_for_one_that_repeats(kind: str, programs_of) -> None:
    loop, condition = BRANCHES[kind]
    rows = 2000 if "2000" in loop else 4000
    (program,) = programs_of(
        '@tile.kernel("mylib::k", reference=lambda x: x)\n'
        "def k(x, y: tile.Out):\n"
        "    n = 0\n"
        "    for r in tile.blocks(x.shape[0], 4000):\n"
        f"        {loop}\n"
        "            t = tile.load(x[s])\n"
        f"            for _ in range(200 if {condition} else 1):\n"
        "                t = t * 1.0\n"
        "            tile.store(y[s], t)\n"
    )
    bound = bind(program, {"x": TensorMeta(shape=(rows, 64), dtype="float32")})
    assert estimate(bound, DEVICE).time_us == pytest.approx(estimate(bound, DEVICE, every=True).time_us, rel=1e-3)
