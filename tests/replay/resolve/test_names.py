"""Names to overloads: what is looked up, what is imported, and what a plan file may ask for."""

from __future__ import annotations

import builtins
import importlib

import msgspec
import pytest
import torch

from opreplay.replay.ir.model import Reason, Recorded, ReplayArg, ReplayOp
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.ops.register import implemented
from opreplay.replay.resolve.names import candidates, find_overload, has_kernel, known_overload
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.resolve.schema import specs_of
from opreplay.traces.model import TensorMeta

MATRIX = TensorMeta(shape=(4, 4), dtype="float32")
POLICY = Policy()


def op(name: str, **fields: object) -> ReplayOp:
    made = ReplayOp(
        id="0" * 12,
        name=name,
        count=1,
        recorded=Recorded(host_us_total=1.0, host_us_median=1.0),
        resolved_by="jit",
        overload="",
        args=(ReplayArg(name="self", type="Tensor", tensors=(MATRIX,)),),
    )
    return msgspec.structs.replace(made, **fields)


def reason_of(one: ReplayOp, policy: Policy = POLICY) -> Reason:
    with pytest.raises(NotReplayable) as caught:
        find_overload(one, policy)
    return caught.value.reason


def test_an_overload_is_found_and_runs() -> None:
    assert find_overload(op("aten::relu"), POLICY) is torch.ops.aten.relu.default
    assert find_overload(op("aten::max", overload="dim"), POLICY) is torch.ops.aten.max.dim


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("os::system", "policy"),
        ("aten::save", "library missing"),
        ("aten::no_such_op", "library missing"),
        ("aten::from_file", "policy"),
        ("prim::Print", "policy"),
        ("load_library::x", "policy"),
        ("ops::load_library", "policy"),
        ("vllm::no_such_op", "library missing"),
        ("fb::no_such_op", "library missing"),
    ],
)
def test_what_a_trace_names_is_never_imported(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[object] = []

    def fail(*args: object, **_: object) -> object:
        reached.append(args[0])
        raise AssertionError(f"imported or ran {args[0]}")

    implemented()  # Python runs `exec` itself to load opreplay's own modules.
    real = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", lambda n, *a: real(n, *a) if n.startswith("opreplay.") else fail(n))
    monkeypatch.setattr(builtins, "eval", fail)
    monkeypatch.setattr(builtins, "exec", fail)
    found = candidates(name, POLICY)
    if found.reason is None:
        assert reason_of(op(name)).kind == kind
    else:
        assert found.reason.kind == kind
    assert reached == []


def test_the_users_module_is_imported(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    module = (
        "import torch\n"
        "lib = torch.library.Library('opreplay_test_lib', 'DEF')\n"
        "lib.define('twice(Tensor x) -> Tensor')\n"
        "lib.impl('twice', lambda x: x * 2, 'CompositeExplicitAutograd')\n"
    )
    (tmp_path / "opreplay_test_module.py").write_text(module)  # type: ignore[operator]
    monkeypatch.syspath_prepend(str(tmp_path))
    assert candidates("opreplay_test_lib::twice", POLICY).reason is not None
    allowed = Policy(allow_imports={"opreplay_test_lib": "opreplay_test_module"})
    found = candidates("opreplay_test_lib::twice", allowed)
    assert (found.resolved_by, len(found.specs)) == ("import", 1)


def test_a_vendor_op_without_its_library_is_a_reference() -> None:
    found = candidates("_C::silu_and_mul", POLICY)
    assert found.resolved_by in ("reference", "import")
    assert found.specs


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"overload": "no_such"}, "failed"),
        ({"args": (ReplayArg(name="no_such", type="int", value=1),)}, "failed"),
        ({"args": (ReplayArg(name="mode", type="str", value="/etc/passwd"),)}, "policy"),
        ({"via": "aten::from_file"}, "policy"),
        ({"via": "prim::Print"}, "policy"),
        ({"via": "not a name"}, "label, not an op"),
        ({"reason": Reason("collective")}, "collective"),
        ({"resolved_by": "equivalent", "via": "aten::from_file"}, "policy"),
    ],
)
def test_a_plan_file_is_checked_again(changes: dict[str, object], kind: str) -> None:
    assert reason_of(op("aten::relu", **changes)).kind == kind


def test_kernels_of_a_device() -> None:
    (convolution,) = (s for s in specs_of("aten::cudnn_convolution") if not s.overload)
    (relu,) = (s for s in specs_of("aten::relu") if not s.overload)
    assert not has_kernel(convolution, "cpu")
    assert has_kernel(relu, "cpu")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("aten::mm", "aten::mm"),
        ("os::system", None),
        ("load_library::x", None),
        ("aten::__class__", None),
        ("mm", None),
    ],
)
def test_an_op_to_look_at_comes_from_the_dispatchers_table_only(name: str, found: str | None) -> None:
    recorded = Recorded(host_us_total=1.0, host_us_median=1.0)
    overload = known_overload(ReplayOp(id="0" * 12, name=name, count=1, recorded=recorded))
    assert (overload and overload.name().partition(".")[0]) == found  # type: ignore[attr-defined]


def test_an_overload_that_does_not_exist_is_not_another_one() -> None:
    unknown = candidates("aten::mm.__globals__", Policy())
    assert not unknown.specs
    assert unknown.reason is not None
    assert unknown.reason.kind == "library missing"
    assert [spec.overload for spec in candidates("aten::mm.default", Policy()).specs] == [""]
    assert [spec.overload for spec in candidates("aten::add.Scalar", Policy()).specs] == ["Scalar"]
