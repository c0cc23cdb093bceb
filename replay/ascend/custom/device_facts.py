# pyright: strict
"""A simulated device as user estimators see it: peak rates by torch dtype, efficiencies, the profile's own fields."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from opreplay.replay.ascend.profile import DeviceProfile

_DTYPES = ("float16", "bfloat16", "float32", "int8")


class DeviceFacts:
    """Reads a `DeviceProfile`; every attribute of the profile is there too (`name`, `rates`, `aic_cores`, ...)."""

    def __init__(self, profile: DeviceProfile) -> None:
        self.profile = profile

    def __getattr__(self, name: str) -> Any:
        return getattr(self.profile, name)

    @cached_property
    def mma_ops(self) -> dict[Any, float]:
        """Peak operations a second of the cube cores by torch dtype; a multiply-add is two."""
        import torch

        device = self.profile
        return {
            getattr(torch, name): 2 * device.macs_per_cycle[name] * device.aic_cores * device.freq_hz
            for name in _DTYPES
            if name in device.macs_per_cycle
        }

    @cached_property
    def gp_ops(self) -> dict[Any, float]:
        """Peak operations a second of the vector cores by torch dtype: 128 bytes a cycle and core."""
        import torch

        device = self.profile
        sizes = {"float16": 2, "bfloat16": 4, "float32": 4, "int8": 2}
        return {getattr(torch, name): 128 / size * device.aiv_cores * device.freq_hz for name, size in sizes.items()}

    @property
    def memory_bandwidth_bytes_ps(self) -> float:
        """Peak of the HBM, bytes a second."""
        return self.profile.hbm_bytes_per_s

    @property
    def memory_size_bytes(self) -> float:
        """Size of the HBM."""
        return self.profile.hbm_bytes

    @property
    def compute_efficiency(self) -> float:
        """Share of the cube's peak that large products reach."""
        return self.profile.rates.mac_efficiency

    @property
    def memory_efficiency(self) -> float:
        """Share of the HBM's peak that vector kernels reach."""
        return self.profile.rates.hbm_efficiency
