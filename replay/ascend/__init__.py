"""The simulated Ascend device: ops become CANN kernels, kernels become microseconds; no torch, nothing executed."""

from opreplay.replay.ascend.device_file import list_devices, load_device
from opreplay.replay.ascend.kernel import KernelCall, KernelPrediction, TensorSpec
from opreplay.replay.ascend.kernel_details import read_kernel_table
from opreplay.replay.ascend.lowering import Lowering, lower
from opreplay.replay.ascend.predict import predict_kernel
from opreplay.replay.ascend.predictor import Predictor
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ascend.simulate import Explanation, explain_op, is_predicted, simulate_op

__all__ = [
    "DeviceProfile",
    "Explanation",
    "KernelCall",
    "KernelPrediction",
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
