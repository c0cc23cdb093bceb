"""Sequences of real ops: what is handed on, what is refilled, what is written in place, and the memory it takes."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch._C._dynamo import eval_frame

from opreplay.replay.execute.executors.timers import HostTimer
from opreplay.replay.execute.executors.torch.device import TorchExecutor
from opreplay.replay.execute.messages import SequenceOutcome, SequenceTask
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.execute.sequence.passes import BEAT, Heartbeat, serve_sequence
from opreplay.replay.ir.model import Reason, Recorded, ReplayArg, ReplayOp
from opreplay.replay.resolve.names import find_overload
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.results.measurement import kind_of
from opreplay.replay.results.outcome import NOT_FINITE, OUTSIDE_DOMAIN, refill_notes
from opreplay.traces.model import TensorMeta
from tests.factories import meta, tensor

OPTIONS = MeasureOptions(min_samples=3)


def op(number: int, name: str, args: list[ReplayArg], *outputs: TensorMeta, overload: str = "") -> ReplayOp:
    return ReplayOp(
        id=f"{number:012x}",
        name=name,
        count=1,
        recorded=Recorded(host_us_total=1.0, host_us_median=1.0),
        resolved_by="jit",
        overload=overload,
        args=tuple(args),
        outputs=outputs,
    )


RELU = op(1, "aten::relu", [tensor("self", 8, 8)], meta(8, 8))
LOG = op(2, "aten::log", [tensor("self", 8, 8)], meta(8, 8))
ALPHA = ReplayArg(name="alpha", type="Scalar", value=1, keyword_only=True)
ADD_ = op(
    3, "aten::add_", [tensor("self", 8, 8, mutated=True), tensor("other", 8, 8), ALPHA], meta(8, 8), overload="Tensor"
)
WRONG = op(4, "aten::relu", [tensor("self", 4, 4)], meta(8, 8))
"""Its plan expects a result that it does not have."""
BAD = op(5, "aten::mm", [tensor("self", 8, 8), tensor("mat2", 4, 4)], meta(8, 8))
SOURCE = [ReplayArg(name="size", type="int[]", value=(8, 8)), ReplayArg(name="fill_value", type="Scalar", value="inf")]
FULL = op(6, "aten::full", [*SOURCE], meta(8, 8))


class Watched(TorchExecutor):
    """Keeps what each call was given and gave: memory and values."""

    def __init__(self) -> None:
        policy = Policy()
        super().__init__("cpu", partial(self.watching, policy), memory_bytes=1 << 26, threads=1)
        self.calls: list[tuple[str, list[int], int, bool]] = []
        """Name, memories of the tensor arguments, memory of the result, whether all arguments were finite."""
        self.made: list[weakref.ref[torch.Tensor]] = []
        self.most_alive = 0

    def watching(self, policy: Policy, wanted: ReplayOp) -> Any:
        function = find_overload(wanted, policy)

        def call(*args: Any, **named: Any) -> Any:
            given = [arg for arg in args if isinstance(arg, torch.Tensor)]
            finite = all(bool(one.isfinite().all()) for one in given if one.is_floating_point())
            result = function(*args, **named)
            made = result.untyped_storage().data_ptr() if isinstance(result, torch.Tensor) else 0
            if isinstance(result, torch.Tensor):
                self.made.append(weakref.ref(result))
            self.most_alive = max(self.most_alive, sum(one() is not None for one in self.made))
            self.calls.append((wanted.name, [one.untyped_storage().data_ptr() for one in given], made, finite))
            return result

        return call


@pytest.fixture
def executor() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.close()


def reasons_of(outcome: SequenceOutcome) -> dict[str, Reason]:
    return {id_: of_op.reason for id_, of_op in outcome.outcomes.items() if of_op.reason is not None}


def served(executor: TorchExecutor, ops: list[ReplayOp], calls: list[int], **task: Any) -> SequenceOutcome:
    with tempfile.NamedTemporaryFile() as beat:
        beat.write(BEAT.pack(-1, 0))
        beat.flush()
        whole = SequenceTask(ops=tuple(ops), calls=tuple(calls), heartbeat=beat.name, **{"time_s": 0.01, **task})
        return serve_sequence(executor, whole, seed=0, options=OPTIONS, op_bytes=1 << 26, tell=lambda _: None)


def test_results_are_handed_on_as_they_are(executor: Watched) -> None:
    outcome = served(executor, [RELU], [0, 0, 0])
    _, second, third = executor.calls[-3:]
    assert second[1] == [executor.calls[-3][2]]
    assert third[1] == [second[2]]
    assert (outcome.calls, outcome.tensors.results, outcome.tensors.outside) == (3, 2, 1)
    assert reasons_of(outcome) == {}
    assert len(outcome.sums_us) == len(outcome.walls_us) >= 1
    found = outcome.outcomes[RELU.id].measurement
    assert found.samples == 3 * len(outcome.sums_us)
    assert all(wall >= total > 0 for wall, total in zip(outcome.walls_us, outcome.sums_us, strict=True))


def test_a_result_is_freed_after_its_last_use(executor: Watched) -> None:
    served(executor, [RELU], [0] * 12)
    assert executor.most_alive == 2, "an argument and its result: all others are dead and freed"


def test_calls_that_write_do_so(executor: Watched) -> None:
    served(executor, [RELU, ADD_], [0, 1, 0])
    relu, add, after = executor.calls[-3:]
    assert add[1][0] == add[2] == relu[2], "in place on the result of the call before"
    assert after[1] == [relu[2]]


def test_what_is_not_finite_is_refilled_and_counted(executor: Watched) -> None:
    outcome = served(executor, [FULL, RELU], [0, 1])
    assert outcome.tensors.refilled == 1
    assert all(call[3] for call in executor.calls if call[0] == "aten::relu")


def test_results_that_are_not_as_planned_are_not_handed_on(executor: Watched) -> None:
    outcome = served(executor, [WRONG, RELU], [0, 1])
    assert (outcome.tensors.results, outcome.tensors.outside) == (0, 2)
    assert reasons_of(outcome) == {}


def test_an_op_that_raises_costs_itself(executor: Watched) -> None:
    outcome = served(executor, [RELU, BAD], [0, 1, 0])
    assert list(reasons_of(outcome)) == [BAD.id]
    assert str(reasons_of(outcome)[BAD.id]).startswith("failed: RuntimeError: mat1 and mat2")
    assert (outcome.calls, outcome.outcomes[RELU.id].status) == (2, "replayed")


def test_tensors_take_no_more_than_the_budget(executor: Watched) -> None:
    mm = op(7, "aten::mm", [tensor("self", 256, 256), tensor("mat2", 256, 256)], meta(256, 256))
    size = 256 * 256 * 4
    whole = served(executor, [mm], [0] * 8)
    less = served(executor, [mm], [0] * 8, budget_bytes=5 * size)
    assert whole.tensors.peak_bytes > 5 * size >= less.tensors.peak_bytes
    assert less.tensors.recycled > 0
    tight = served(executor, [mm], [0] * 8, budget_bytes=3 * size)
    assert tight.tensors.remade > 0
    assert tight.tensors.peak_bytes <= 3 * size
    assert tight.calls == 8


def test_an_op_that_needs_more_than_all_may_take_is_left_out(executor: Watched) -> None:
    outcome = served(executor, [RELU], [0], budget_bytes=100)
    assert (
        str(reasons_of(outcome)[RELU.id])
        == "budget: needs 512 B, but all tensors together may take 100 B (--set max_live_memory)"
    )
    assert outcome.sums_us == ()


def test_indices_are_those_of_the_initializer(executor: Watched) -> None:
    """A result of that size and type may hold anything; used as indices it would leave the table."""
    big = ReplayArg(name="fill_value", type="Scalar", value=10**6)
    kind = ReplayArg(name="dtype", type="ScalarType", value="torch.int64", keyword_only=True)
    full = op(8, "aten::full", [SOURCE[0], big, kind], meta(8, 8, dtype="int64"))
    embed = op(9, "aten::embedding", [tensor("weight", 10, 4), tensor("indices", 8, 8, dtype="int64")], meta(8, 8, 4))
    outcome = served(executor, [full, embed], [0, 1])
    assert reasons_of(outcome) == {}
    assert outcome.outcomes[embed.id].initializer == "index"


def test_ops_of_their_own_take_nothing_from_others(executor: Watched) -> None:
    assert served(executor, [RELU], [0, 0], unshared=(RELU.id,)).tensors.results == 0


def test_a_parameter_that_grows_without_end_is_mended(executor: Watched) -> None:
    """An op that writes to a tensor from outside does so in each pass."""
    mul_ = op(10, "aten::exp_", [tensor("self", 8, 8, mutated=True)], meta(8, 8))
    outcome = served(executor, [mul_], [0], time_s=0.05)
    assert outcome.tensors.refilled >= 1


def broken_at(index: int, path: str) -> None:
    with Heartbeat(path) as beat:
        beat(index)
        raise KeyError


def test_the_heartbeat_says_where_a_process_was_when_it_ended() -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(BEAT.pack(-1, 0))
        file.flush()
        with pytest.raises(KeyError):
            broken_at(3, file.name)
        assert BEAT.unpack(Path(file.name).read_bytes())[0] == 3
        with Heartbeat(file.name) as beat:
            beat(4)
        assert BEAT.unpack(Path(file.name).read_bytes())[0] == -1


def test_a_list_of_tensors_is_linked_one_by_one(executor: Watched) -> None:
    cat = op(
        11, "aten::cat", [ReplayArg(name="tensors", type="Tensor[]", tensors=(meta(8, 8), meta(8, 8)))], meta(16, 8)
    )
    outcome = served(executor, [RELU, cat], [0, 0, 1])
    assert (outcome.tensors.results, reasons_of(outcome)) == (3, {})


class Breaking(Watched):
    """One op raises from its `last`-th call on; what calls before that were given is watched."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self._left = last
        self._given: list[weakref.ref[torch.Tensor]] = []
        self.held: list[int] = []
        """How many of what was given before the op raised still live, at each call of another op after it."""

    def watching(self, policy: Policy, wanted: ReplayOp) -> Any:
        function = super().watching(policy, wanted)

        def call(*args: Any, **named: Any) -> Any:
            if wanted.id == ADD_.id:
                self._left -= 1
                if self._left <= 0:
                    raise RuntimeError("no more")
            if self._left > 0:
                self._given += [weakref.ref(arg) for arg in args if isinstance(arg, torch.Tensor)]
            else:
                self.held.append(sum(one() is not None for one in self._given))
            return function(*args, **named)

        return call


@pytest.mark.parametrize("last", [1, 3])
def test_the_tensors_of_a_program_are_gone_before_those_of_the_next_are_made(last: int) -> None:
    executor = Breaking(last)
    try:
        outcome = served(executor, [RELU, ADD_], [0, 1], time_s=0.05)
    finally:
        executor.close()
    assert list(reasons_of(outcome)) == [ADD_.id]
    assert executor.held[0] == 0, "whether it raised in the first pass or in one that counts"


def test_they_are_gone_also_where_python_frames_run_through_dynamo() -> None:
    """Then a caller keeps the arguments of a call until it returns."""
    before = eval_frame.set_eval_frame(False)
    try:
        test_the_tensors_of_a_program_are_gone_before_those_of_the_next_are_made(3)
    finally:
        eval_frame.set_eval_frame(before)


def test_a_program_made_anew_during_the_passes_is_looked_at_as_well() -> None:
    """Else results that are not finite would not be refilled any more."""
    executor = Breaking(3)
    try:
        outcome = served(executor, [FULL, RELU, ADD_], [0, 1, 2], time_s=0.05)
    finally:
        executor.close()
    assert list(reasons_of(outcome)) == [ADD_.id]
    assert outcome.tensors.refilled == 1


class Late(Watched):
    """The time of the task is over after so many calls."""

    def __init__(self, last: int, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._left = last
        self._patch = monkeypatch

    def watching(self, policy: Policy, wanted: ReplayOp) -> Any:
        function = super().watching(policy, wanted)

        def call(*args: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                self._patch.setattr("opreplay.replay.execute.sequence.passes.perf_counter", lambda: 1e12)
            return function(*args, **named)

        return call


@pytest.mark.parametrize(("last", "passes"), [(2, 0), (5, 0), (11, 1)])
def test_passes_end_with_the_time_of_the_run(monkeypatch: pytest.MonkeyPatch, last: int, passes: int) -> None:
    """In the first pass, in the one that warms up, in the second one that counts."""
    executor = Late(last, monkeypatch)
    try:
        outcome = served(executor, [RELU], [0, 0, 0], time_s=10.0, left_s=1000.0)
    finally:
        executor.close()
    assert len(outcome.sums_us) == passes
    assert len(outcome.outcomes) == min(1, passes)
    assert outcome.calls == 3 * min(1, passes)


SQRT = op(20, "aten::sqrt", [tensor("self", 8, 8)], meta(8, 8))
NEG = op(21, "aten::neg", [tensor("self", 8, 8)], meta(8, 8))
DECAY = [tensor("self", 8, 8, mutated=True), ReplayArg(name="other", type="Scalar", value=0.999)]
MUL_ = op(22, "aten::mul_", DECAY, meta(8, 8), overload="Scalar")
ADDCMUL_ = op(
    23,
    "aten::addcmul_",
    [
        tensor("self", 8, 8, mutated=True),
        tensor("tensor1", 8, 8),
        tensor("tensor2", 8, 8),
        ReplayArg(name="value", type="Scalar", value=0.001, keyword_only=True),
    ],
    meta(8, 8),
)


class Lowest(Watched):
    """Keeps the smallest value that each root was taken of; NaN where there was any."""

    def __init__(self) -> None:
        super().__init__()
        self.lowest: list[float] = []

    def watching(self, policy: Policy, wanted: ReplayOp) -> Any:
        function = super().watching(policy, wanted)

        def call(*args: Any, **named: Any) -> Any:
            if wanted.id == SQRT.id:
                self.lowest.append(float(args[0].min()))
            return function(*args, **named)

        return call


@pytest.fixture
def roots() -> Iterator[Lowest]:
    made = Lowest()
    yield made
    made.close()


def test_a_tensor_from_outside_suits_the_first_reader_with_a_domain(roots: Lowest) -> None:
    """As the second moments of AdamW, which are scaled and added to in place before their root is taken."""
    # After hundreds of passes these sums may be below zero: what is written is then filled anew.
    outcome = served(roots, [MUL_, ADDCMUL_, SQRT], [0, 1, 2], time_s=0.001)
    assert reasons_of(outcome) == {}
    assert roots.lowest
    assert min(roots.lowest) > 0
    assert outcome.tensors.refilled == 0
    assert not refill_notes(outcome.outcomes[SQRT.id].assumptions)


def test_results_outside_the_domain_of_their_reader_are_put_inside_before_it(roots: Lowest) -> None:
    outcome = served(roots, [NEG, SQRT, RELU], [0, 1, 2])
    assert reasons_of(outcome) == {}
    assert roots.lowest[0] < 0, "the first pass finds it out"
    assert min(roots.lowest[1:]) > 0
    assert all(finite for name, _, _, finite in roots.calls if name == "aten::relu")
    assert outcome.tensors.refilled == 1
    assert refill_notes(outcome.outcomes[SQRT.id].assumptions) == (OUTSIDE_DOMAIN,)
    assert not refill_notes(outcome.outcomes[RELU.id].assumptions)


def test_what_is_refilled_since_it_was_not_finite_suits_its_reader(roots: Lowest) -> None:
    outcome = served(roots, [FULL, SQRT], [0, 1])
    assert min(roots.lowest[1:]) > 0
    assert refill_notes(outcome.outcomes[FULL.id].assumptions) == (NOT_FINITE,)


class Switched(HostTimer):
    """Says that another program had the processor in every second call."""

    def interrupted(self) -> list[int]:
        return [0]


def test_calls_that_were_interrupted_in_most_passes_are_marked(executor: Watched, monkeypatch: Any) -> None:
    monkeypatch.setattr("opreplay.replay.execute.executors.torch.sequence_tools.HostTimer", Switched)
    outcome = served(executor, [RELU, NEG], [0, 1])
    kinds = [{kind_of(one) for one in outcome.outcomes[each.id].measurement.warnings} for each in (RELU, NEG)]
    assert ["interrupted" in found for found in kinds] == [True, False]


class Asked(HostTimer):
    """Keeps what each call of a pass calls, and with what."""

    def __init__(self) -> None:
        self.functions: list[Any] = []
        super().__init__()

    def timed(self, function: Any, args: Any, named: Any) -> Any:
        self.functions.append(function)
        return super().timed(function, args, named)


WINDOW = ("dim", "start", "end", "step")
SLICE = op(
    31,
    "aten::slice",
    [
        tensor("self", 8, 8),
        *(ReplayArg(name=name, type="int", value=value) for name, value in zip(WINDOW, (0, 1, 5, 1), strict=True)),
    ],
    meta(4, 8),
    overload="Tensor",
)
CAT = op(
    32,
    "aten::cat",
    [
        ReplayArg(name="tensors", type="Tensor[]", tensors=(meta(8, 8), meta(4, 8))),
        ReplayArg(name="dim", type="int", value=0),
    ],
    meta(12, 8),
)


def test_a_sequence_calls_what_an_op_alone_calls() -> None:
    """It called by torch.ops, whose boxed arguments cost 1 to 3 us an op."""
    policy, timer = Policy(), Asked()
    executor = TorchExecutor("cpu", lambda wanted: find_overload(wanted, policy), memory_bytes=1 << 26, threads=1)
    parts = msgspec.structs.replace(executor.for_sequences(), timer=timer)
    executor.for_sequences = lambda: parts
    ops = [RELU, ADD_, SLICE, CAT]
    outcome = served(executor, ops, [0, 1, 2, 3])
    alone = [executor.prepare(one, seed=0).call.func for one in ops]
    executor.close()
    assert reasons_of(outcome) == {}
    assert timer.functions[-4:] == alone
    assert not any(isinstance(function, torch._ops.OpOverload) for function in alone)
    assert (outcome.tensors.results, outcome.tensors.outside) == (4, 2), "all of them are handed on"
