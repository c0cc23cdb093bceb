# pyright: strict
"""Compatibility for operators written for torch_ir: `from opreplay.torch_ir import register_executor, register_op`."""

from opreplay.replay.resolve.user.torch_ir import (
    NodeInfo,
    OpNode,
    get_conversion_fn,
    get_execution_fn,
    register_executor,
    register_op,
)

__all__ = ["NodeInfo", "OpNode", "get_conversion_fn", "get_execution_fn", "register_executor", "register_op"]
