# pyright: strict
"""Predict the time of ops on Ascend devices: lower ops to CANN kernels and predict each kernel's time in microseconds.

Needs no torch and executes nothing. Names are imported on first use, because importing any module in this folder
imports this one.
"""

from typing import TYPE_CHECKING

from opreplay.replay.host.lazy_names import lazy_names

if TYPE_CHECKING:
    from opreplay.replay.ascend.cost.predict import predict_kernel
    from opreplay.replay.ascend.cost.predictor import Predictor
    from opreplay.replay.ascend.devices.file import list_devices, load_device
    from opreplay.replay.ascend.lowering import Lowering, lower
    from opreplay.replay.ascend.measured.kernel_tables import read_kernel_table
    from opreplay.replay.ascend.profile import DeviceProfile
    from opreplay.replay.ascend.simulate.op import Explanation, explain_op, is_predicted, simulate_op
    from opreplay.replay.ir.kernel import KernelCall, TensorSpec

__all__ = [
    "DeviceProfile",
    "Explanation",
    "KernelCall",
    "Lowering",
    "Predictor",
    "TensorSpec",
    "explain_op",
    "is_predicted",
    "list_devices",
    "load_device",
    "lower",
    "predict_kernel",
    "read_kernel_table",
    "simulate_op",
]

_HOMES = {
    name: module
    for module, names in {
        "replay.ascend.cost.predict": "predict_kernel",
        "replay.ascend.cost.predictor": "Predictor",
        "replay.ascend.devices.file": "list_devices load_device",
        "replay.ascend.lowering": "Lowering lower",
        "replay.ascend.measured.kernel_tables": "read_kernel_table",
        "replay.ascend.profile": "DeviceProfile",
        "replay.ascend.simulate.op": "Explanation explain_op is_predicted simulate_op",
        "replay.ir.kernel": "KernelCall TensorSpec",
    }.items()
    for name in names.split()
}
"""Public name → the module that defines it, without the leading "opreplay."."""

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
