# pyright: strict
"""Users' estimators and op properties, as in the RFC "Support for Custom Operator Modeling"."""

from opreplay.replay.ascend.custom.estimators import CustomOpError, load_custom_ops, register_op_estimator
from opreplay.replay.ascend.custom.op_invoke import ComputeOps, OpInvokeInfo, PerformanceModel, PerformanceProperties

__all__ = [
    "ComputeOps",
    "CustomOpError",
    "OpInvokeInfo",
    "PerformanceModel",
    "PerformanceProperties",
    "load_custom_ops",
    "register_op_estimator",
]
