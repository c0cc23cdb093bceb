"""Blocks of real traces, damaged at random, read by the compiled half and by Python: both must say the same.

    python -m tests.traces.reading.native.differential --seconds 60 [--blocks N] [--seed N] [--keep FOLDER]

Exit status 1 when a file is read differently; it is written to the folder given with --keep, and belongs into
`tests/traces/reading/native/corpus`, which `test_blocks.py` reads again in every run.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

from opreplay.traces import Trace, read_trace
from opreplay.traces import trim as trim_module
from opreplay.traces.errors import TraceError
from opreplay.traces.reading import scan
from opreplay.traces.reading.native import blocks as compiled
from opreplay.traces.samples import SAMPLES, sample_path
from opreplay.traces.trim import Trimmed, Wanted, trim
from tests.traces.test_reader import same

ROOT = Path(__file__).resolve().parents[4]
CORPUS = Path(__file__).parent / "corpus"
EVENTS_PER_BLOCK = (1, 2, 5, 12, 30)
BLOCK_BYTES = (256, 1 << 10, 1 << 12, 1 << 18)
_BETWEEN = re.compile(rb"\}\s*,\s*\{\s*\"(?:ph|name|cat|args|ts|pid)\"")
_MEMBER = re.compile(
    rb'"([A-Za-z][A-Za-z ]*)"\s*:\s*("(?:[^"\\]|\\.)*"|[-0-9.eE+]+|null|true|false|\[[^\[\]{}]*\]|\{\})'
)
_STARTS = re.compile(rb'"ts": ?"?([0-9]{1,16})')
_THREADS = re.compile(rb'"pid": ?("[ -~]*?"|[0-9]+),\s*"tid": ?("[ -~]*?"|[0-9]+)')
_KEYS = (
    b"ph",
    b"cat",
    b"name",
    b"pid",
    b"tid",
    b"ts",
    b"dur",
    b"id",
    b"args",
    b"External id",
    b"external id",
    b"correlation",
    b"connection_id",
    b"device",
    b"stream",
    b"Input Dims",
    b"Input dims",
    b"Input type",
    b"Input Strides",
    b"Concrete Inputs",
    b"Record function id",
    b"Sequence number",
    b"Task Type",
    b"Ev Idx",
    b"bp",
    b"Cat",
)
_VALUES = (
    b"null",
    b"true",
    b"false",
    b"0",
    b"-0",
    b"-1",
    b"1.5",
    b"7.0",
    b"-0.0005",
    b"1.2345",
    b"1e5",
    b"1E-7",
    b"1e308",
    b"1e309",
    b"1e999",
    b"1e-999",
    b"-1e400",
    b"1e9999999",
    b"-5e1000000",
    b"1e99999999999999999999",
    b"-1e-99999999999999999999",
    b"1" * 19,
    b"9" * 19,
    b"9" * 20,
    b"1" * 30,
    b"1" * 210,
    b"0." + b"3" * 40,
    b"18446744073709551615",
    b"18446744073709551616",
    b"9223372036854775807",
    b"9223372036854775808",
    b"-9223372036854775808",
    b"8796093022207.9999",
    b"8796093022208.5",
    b"2199023255551.99951",
    b"2199023255552.1235",
    b"1736405443893564.042",
    b"1736405443893564.04251",
    b"9223372036854775",
    b"01",
    b"1.",
    b".5",
    b"+1",
    b"-",
    b"NaN",
    b"Infinity",
    b'"X"',
    b'"s"',
    b'"f"',
    b'"M"',
    b'"kernel"',
    b'"cpu_op"',
    b'"cuda_runtime"',
    b'"ac2g"',
    b'"new"',
    b'"user_annotation"',
    b'"python_function"',
    b'"12"',
    b'"0x1f"',
    b'"1.5"',
    b'"1736405443893564.042"',
    b'"1e9999999"',
    b'"1e99999999999999999999"',
    b'""',
    b'"\xc3\xa9"',
    b'"\xff"',
    b'"\xed\xa0\x80"',
    b'"\xc0\xaf"',
    b'"\xf5\x80\x80\x80"',
    b'"\xe2\x82"',
    b'"a\\u0041"',
    b'"\\ud800"',
    b'"\\ud83d\\ude00"',
    b'"\\/"',
    b'"\\x"',
    b'"\x01"',
    b'"\x7f"',
    b'"a\\"b"',
    b'"}, {"',
    b'"Task Type"',
    b'"event_Wait"',
    b'"AI_CORE"',
    b'"x" : "y"',
    b"[]",
    b"{}",
    b"[1.5, 2]",
    b"[[1, 2], []]",
    b'{"a": 1}',
    b"[" * 40 + b"]" * 40,
    b'{"a":' * 33 + b"1" + b"}" * 33,
)
_BYTES = (
    b'"',
    b"}",
    b"{",
    b"]",
    b"[",
    b",",
    b":",
    b"\\",
    b"\x00",
    b"\xff",
    b"\x80",
    b"\xc3",
    b"\n",
    b"\t",
    b"\x0b",
    b" ",
    b"0",
    b"-",
    b".",
    b"e9",
    b"e",
    b"null",
    b"//",
    b"},{",
    b"}, {",
    b'"cat":"cpu_op",',
    b'{"ph":"X"},',
    b"{},",
    b"5,",
    b"\\u0041",
    b"\\ud800",
    b'"a":1,',
    b'"a":"\xff",',
    b'"\xff":1,',
    b'"\\u0061":1,',
    b'"a":1e999,',
)


@contextmanager
def reader(*, python: bool) -> Iterator[list[bool]]:
    """Blocks go to the compiled half from the first byte on, or never; yields whether it took each block."""
    taken: list[bool] = []
    read = compiled.CompiledBlocks.read

    def watched(self: compiled.CompiledBlocks, data: bytearray, start: int, stop: int) -> bool:
        taken.append(read(self, data, start, stop))
        return taken[-1]

    with mock.patch.object(scan, "SNIFF_BYTES", 0), mock.patch.object(compiled.CompiledBlocks, "read", watched):
        if not python:
            yield taken
            return
        with mock.patch.object(compiled, "compiled_scanner", return_value=None):
            yield taken


def outcome(
    path: Path, *, python: bool, block: int = 1 << 18, numbered: bool = False
) -> tuple[Trace | str, list[bool]]:
    """The trace, or the error in words, and which blocks the compiled half took."""
    with reader(python=python) as taken:
        try:
            return read_trace(path, _block_bytes=block, record_function_ids=numbered), taken
        except TraceError as err:
            return f"{type(err).__name__}: {err}", taken


def copied(path: Path, *, python: bool, block: int) -> tuple[Trimmed, bytes] | str:
    """What a trim to some of the times of a file comes to, and writes, or the error in words."""
    text, target = path.read_bytes(), path.with_suffix(".part")
    starts = [0, *sorted(int(digits) * 1000 for digits in _STARTS.findall(text))]
    early, middle, late = (starts[len(starts) * quarter // 4] for quarter in (1, 2, 3))
    of_threads = dict.fromkeys(
        ((pid.strip(b'"').decode(), tid.strip(b'"').decode()) for pid, tid in _THREADS.findall(text)),
        ((middle, late + 1),),
    )
    wanted = Wanted(spans=((early, middle + 1),), of_threads=of_threads)
    sized = partial(scan.Scanner, block_bytes=block)
    with mock.patch.object(trim_module, "Scanner", sized), reader(python=python):
        try:
            return trim(path, target, wanted, force=True), target.read_bytes()
        except TraceError as err:
            return f"{type(err).__name__}: {err}"


def assert_same(path: Path, *, block: int = 1 << 18, numbered: bool = False) -> list[bool]:
    """Both halves read the same; which blocks the compiled one took."""
    got, taken = outcome(path, python=False, block=block, numbered=numbered)
    wanted, _ = outcome(path, python=True, block=block, numbered=numbered)
    if isinstance(got, str) or isinstance(wanted, str):
        assert got == wanted
    else:
        same(got, wanted, path=True)
    assert copied(path, python=False, block=block) == copied(path, python=True, block=block)
    return taken


def events_of(path: Path, *, most: int = 4 << 20) -> list[bytes]:
    """The text of each event of a sound trace, as it stands in the file."""
    with gzip.open(path) as file:
        text = file.read(most)
    start = text.find(b"[", text.find(b'"traceEvents"'))
    at = text.find(b"{", start)
    cuts = [m.start() + 1 for m in _BETWEEN.finditer(text, at)]
    starts = [at, *(text.index(b"{", cut) for cut in cuts)]
    return [text[a:b] for a, b in zip(starts, cuts, strict=False) if len(text[a:b]) < 1 << 14]


def _number_or_text(text: bytes, rng: random.Random) -> bytes:
    members = list(_MEMBER.finditer(text))
    if not members:
        return text
    m = rng.choice(members)
    return text[: m.start(2)] + rng.choice(_VALUES) + text[m.end(2) :]


def _rename(text: bytes, rng: random.Random) -> bytes:
    members = list(_MEMBER.finditer(text))
    if not members:
        return text
    m = rng.choice(members)
    return text[: m.start(1)] + rng.choice(_KEYS) + text[m.end(1) :]


def _add_member(text: bytes, rng: random.Random) -> bytes:
    braces = [i for i in range(len(text)) if text[i : i + 1] == b"{"]
    if not braces:
        return text
    at = rng.choice(braces) + 1
    return text[:at] + b'"' + rng.choice(_KEYS) + b'": ' + rng.choice(_VALUES) + b"," + text[at:]


def _put(text: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(_BYTES) + text[at + rng.choice((0, 0, 1, 2)) :]


def _flip(text: bytes, rng: random.Random) -> bytes:
    if not text:
        return text
    at = rng.randrange(len(text))
    return text[:at] + bytes([text[at] ^ 1 << rng.randrange(8)]) + text[at + 1 :]


def _cut(text: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(text) + 1)
    return text[:at] + text[at + rng.choice((1, 2, 5, 20, 100, 1000)) :]


def _repeat(text: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(text) + 1)
    return text[:at] + text[max(0, at - rng.choice((1, 3, 10, 50, 300))) :]


DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _number_or_text,
    _number_or_text,
    _number_or_text,
    _rename,
    _add_member,
    _add_member,
    _put,
    _put,
    _flip,
    _cut,
    _repeat,
)


def damaged_file(pools: list[list[bytes]], rng: random.Random) -> tuple[bytes, int]:
    """(text of a trace of a few blocks, how many of them are damaged)."""
    blocks, damaged = [], 0
    for _ in range(rng.choice((1, 2, 4, 8))):
        pool = rng.choice(pools)
        at = rng.randrange(len(pool))
        block = b",\n".join(pool[at : at + rng.choice(EVENTS_PER_BLOCK)])
        if rng.random() < 0.8:
            damaged += 1
            for _ in range(rng.choice((1, 1, 1, 2, 3))):
                block = rng.choice(DAMAGES)(block, rng)
        blocks.append(block)
    tail = b",\n".join(pools[0][:3])
    return b'{"schemaVersion": 1, "traceEvents": [' + b",\n".join([*blocks, tail]) + b"]}", damaged


def pools_of(folder: Path | None) -> list[list[bytes]]:
    """Events of the bundled samples and of the traces in a folder."""
    paths = [sample_path(name) for name in SAMPLES]
    if folder is not None and folder.is_dir():
        paths += sorted(path for path in folder.glob("*.json.gz") if not path.name.endswith("_et.json.gz"))
    return [events for path in paths if (events := events_of(path))]


def main() -> int:
    """Read damaged files until the time is over or enough blocks were read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--blocks", type=int, default=10**9, help="stop after so many damaged blocks")
    parser.add_argument("--seed", type=int, default=None, help="the same files again; other ones each time without it")
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces", help="more traces to damage")
    parser.add_argument("--keep", type=Path, default=None, help="where to write files that are read differently")
    given = parser.parse_args()
    if compiled.compiled_scanner() is None:
        sys.stdout.write("the compiled reader is not built: nothing to compare\n")
        return 2
    seed = random.randrange(2**32) if given.seed is None else given.seed
    rng = random.Random(seed)
    pools = pools_of(given.traces)
    blocks = files = different = taken = asked = 0
    end = time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as scratch:
        path = Path(scratch) / "trace.json"
        while time.monotonic() < end and blocks < given.blocks:
            text, damaged = damaged_file(pools, rng)
            path.write_bytes(text)
            block, numbered = rng.choice(BLOCK_BYTES), rng.random() < 0.3
            files, blocks = files + 1, blocks + damaged
            try:
                took = assert_same(path, block=block, numbered=numbered)
            except Exception as err:  # whatever a reader raises that is no TraceError is a finding as well
                different += 1
                what = f"{type(err).__name__}: {str(err)[:300]}"
                sys.stdout.write(f"different (block={block}, numbered={numbered}): {what}\n")
                if given.keep:
                    given.keep.mkdir(parents=True, exist_ok=True)
                    name = f"{seed}_{files}_b{block}{'_numbered' if numbered else ''}.json"
                    (given.keep / name).write_bytes(text)
                continue
            taken, asked = taken + sum(took), asked + len(took)
    sys.stdout.write(
        f"seed {seed}: {blocks} damaged blocks in {files} files from {len(pools)} traces: {different} read differently"
        f"; the compiled reader took {taken} of the {asked} blocks that it was asked for\n"
    )
    return 1 if different or not taken else 0


if __name__ == "__main__":
    sys.exit(main())
