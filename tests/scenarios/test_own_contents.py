"""What results say of the contents of arguments of ops that nobody knows: which initializer made them, or that none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.initializers import extensions
from opreplay.initializers.user_code import forget_loaded

pytestmark = pytest.mark.slow

NAMESPACE = "own_contents"
OPS = f"""
import torch
lib = torch.library.Library("{NAMESPACE}", "DEF")
for name in ("paged_decode", "by_version", "by_numpy", "by_data"):
    tensors = "Tensor q, Tensor block_tables, Tensor context_lens, Tensor shade, Tensor(a!) out_slots"
    lib.define(name + "(" + tensors + ") -> Tensor")
    lib.impl(name, lambda q, b, c, d, e: q + c.sum() + b.sum(), "CompositeExplicitAutograd")
"""
INITS = f"""
import opreplay

def kind(op, write, said):
    class Own(opreplay.CustomInit):
        name = op
        op_patterns = ("{NAMESPACE}::" + op,)

        def initialize(self, context):
            write(context.need("context_lens"))
            return said

    return opreplay.register_initializer(Own)

kind("by_version", lambda t: t.fill_(5), "8 contexts of 5")
kind("by_numpy", lambda t: t.numpy().fill(7), opreplay.InitReport(summary="8 contexts of 7"))
kind("by_data", lambda t: t.data.fill_(7), None)
"""
Arg = tuple[Any, str, Any, str]
Q: Arg = ([8, 64], "float", [64, 1], "")
IDS: Arg = ([8], "int", [1], "")


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    yield
    extensions.clear_registrations()
    forget_loaded()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A trace of the four ops and one of torch's, and the options that name the user's files."""
    folder = tmp_path_factory.mktemp("own")
    events = [
        event(f"{NAMESPACE}::{name}", Q, IDS, IDS, IDS, IDS)
        for name in ("paged_decode", "by_version", "by_numpy", "by_data")
    ]
    events.append(event("aten::index_select", Q, ([], "Scalar", [], "0"), IDS))
    (folder / "t.json").write_text(json.dumps({"traceEvents": [{**e, "ts": 100 * i} for i, e in enumerate(events)]}))
    (folder / "ops.py").write_text(OPS)
    (folder / "inits.py").write_text(INITS)
    paths = ("--plugin", str(folder / "ops.py"), "--plugin", str(folder / "inits.py"))
    return (str(folder / "t.json"), *paths, "--set", "op_time=2ms", "--select", "all")


def event(name: str, *args: Arg) -> dict[str, Any]:
    dims, types, strides, concrete = ([arg[i] for arg in args] for i in range(4))
    columns = {"Input Dims": dims, "Input type": types, "Input Strides": strides, "Concrete Inputs": concrete}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "dur": 10, "args": columns}


def ran(files: tuple[str, ...], *more: str) -> dict[str, Any]:
    done = CliRunner().invoke(opreplay, ["run", *files, "--format", "json", *more])
    assert done.exit_code == 0, done.output
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("mode", ["unique", "sequence"])
def test_what_an_initializer_wrote_is_said_to_be_its_own_however_it_wrote(files: tuple[str, ...], mode: str) -> None:
    ops = {op["name"].partition("::")[2]: op for op in ran(files, "--mode", mode)["ops"]}
    told = {
        name: {one["argument"]: one["what"] for one in op["assumptions"] if one["argument"] != "*"}
        for name, op in ops.items()
    }
    for name in ("by_version", "by_numpy", "by_data"):
        assert (ops[name]["status"], ops[name]["initializer"]) == ("replayed", name)
        assert told[name]["context_lens"] == f"filled by {name}"
        assert told[name]["block_tables"] == "integers in [0, 8)"
    assert told["paged_decode"]["context_lens"] == "integers in [0, 8)"
    summaries = {name: (op.get("filling") or {}).get("summary") for name, op in ops.items()}
    assert (summaries["by_version"], summaries["by_numpy"]) == ("8 contexts of 5", "8 contexts of 7")
    assert not summaries["by_data"]


def test_an_op_without_an_initializer_whose_lengths_are_random_is_told_at_the_top(files: tuple[str, ...]) -> None:
    answer = ran(files)
    at_random = {op["name"]: (op.get("filling") or {}).get("at_random", []) for op in answer["ops"]}
    assert at_random.pop(f"{NAMESPACE}::paged_decode") == ["block_tables", "context_lens"]
    assert not any(at_random.values())
    assert len(answer["suspects"]) == 1
    page = CliRunner().invoke(opreplay, ["run", *files, "--notes"]).output
    table = page.index("share")
    hint = f"! {NAMESPACE}::paged_decode: block_tables, context_lens are filled at random"
    assert hint in page[:table]
    assert "8 contexts of 5" in page[table:]
