# pyright: strict
"""The simulated Ascend device: maps ops to CANN kernels and kernels to microseconds; no torch, executes nothing."""

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
