# pyright: strict
"""Cached predictions on one device: a bounded cache keyed by everything that a prediction depends on."""

from __future__ import annotations

from opreplay.replay.ascend.cost.predict import predict_kernel
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ir.kernel import KernelCall, State
from opreplay.replay.results.records import Simulated

MAX_CACHED = 200_000
"""Maximum number of cached predictions; beyond it the cache is cleared."""


class Predictor:
    """A cache of `predict_kernel` results for one device.

    The key holds the type, all tensors and all attributes (sequence lengths, transposition, ranks, ...). Calls that
    differ in a single number therefore have separate entries. Devices do not share a cache, because two devices with
    the same name may differ.
    """

    def __init__(self, device: DeviceProfile) -> None:
        self.device = device
        self._predictions: dict[object, Simulated] = {}

    def __call__(
        self, call: KernelCall, resident: float | None = None, state: State = "network", loaded: float = 0.0
    ) -> Simulated:
        """Return the cost of one launch; see `predict_kernel`. `resident` and `loaded` are rounded to a hundredth."""
        if resident is not None:
            resident = round(resident, 2)
        loaded = round(loaded, 2)
        attrs = call.attrs
        key = (call.type, call.inputs, call.outputs, resident, state, loaded, tuple(attrs.items()) if attrs else None)
        prediction = self._predictions.get(key)
        if prediction is None:
            if len(self._predictions) >= MAX_CACHED:
                self._predictions.clear()
            prediction = self._predictions[key] = predict_kernel(call, self.device, resident, state, loaded)
        return prediction
