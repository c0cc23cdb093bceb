# pyright: strict
"""Predict single ops on simulated devices; errors are returned as values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from opreplay.replay.job.events import Event, Predicted
from opreplay.replay.results.records import Simulated
from opreplay.traces.errors import InternalError
from opreplay.traces.names import plural

if TYPE_CHECKING:
    from opreplay.replay.ascend.custom.registrations import CustomOpError
    from opreplay.replay.ascend.profile import DeviceProfile
    from opreplay.replay.ir.model import ReplayOp
    from opreplay.replay.ops.work.contents import Contents
    from opreplay.replay.results.records import L2State

Predict = Callable[["ReplayOp"], Predicted]


def no_prediction(op: ReplayOp) -> Predicted:
    """Return an empty prediction."""
    return Predicted(op=op, simulated={})


class OpPredictor(msgspec.Struct, frozen=True, kw_only=True):
    """Predicts ops on several devices."""

    devices: Mapping[str, DeviceProfile]
    contents: Callable[[ReplayOp], Contents | None] | None = None
    """Function that returns the expected contents of an op's arguments."""
    l2: L2State = "sequence"
    leaves_out: Callable[[ReplayOp], bool] | None = None
    """Function that returns whether to skip an op."""

    def __call__(self, op: ReplayOp) -> Predicted:
        """Predict one op on every device.

        There is no prediction for labels, ops without recorded arguments, skipped ops, and ops whose estimator fails.
        """
        if not self.devices or (self.leaves_out is not None and self.leaves_out(op)):
            return no_prediction(op)
        from opreplay.replay.ascend.custom.registrations import CustomOpError
        from opreplay.replay.ascend.simulate.op import is_predicted, simulate_op

        simulated: dict[str, Simulated] = {}
        why: list[str] = []
        errors: list[CustomOpError | InternalError] = []
        for name, device in self.devices.items():
            try:
                prediction = simulate_op(op, device, None if self.contents is None else self.contents(op), self.l2)
            except (CustomOpError, InternalError) as error:
                errors.append(error)
                why.append(f"no prediction for {name}: {error.problem}")
            else:
                if is_predicted(op, prediction):
                    simulated[name] = prediction
                elif prediction.by == "nothing" and prediction.source:
                    why.append(f"not predicted for {name}: {prediction.source}")
        return Predicted(op=op, simulated=simulated, why=tuple(why), errors=tuple(errors))


def raise_errors(predict: Predict) -> Predict:
    """Wrap a predictor so that the wrapper raises the first CustomOpError or InternalError of an op."""

    def predict_or_raise(op: ReplayOp) -> Predicted:
        prediction = predict(op)
        if prediction.errors:
            raise prediction.errors[0]
        return prediction

    return predict_or_raise


class Faults(msgspec.Struct):
    """A consumer that collects internal errors and raises the first one at the end."""

    by_op: dict[str, InternalError] = msgspec.field(default_factory=dict[str, InternalError])
    """Op id → its first internal error."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Predicted):
            self.add([event])

    def add(self, predictions: Iterable[Predicted]) -> None:
        """Collect the internal errors in these predictions."""
        for prediction in predictions:
            for error in prediction.errors:
                if isinstance(error, InternalError):
                    self.by_op.setdefault(prediction.op.id, error)

    def conclude(self) -> None:
        """Raise the first InternalError, if any, with the number of other ops that have one."""
        if self.by_op:
            first = next(iter(self.by_op.values()))
            more = f"; and {plural(len(self.by_op) - 1, 'more op')}" if len(self.by_op) > 1 else ""
            raise InternalError(f"{first.problem}{more}", hint=first.hint)
