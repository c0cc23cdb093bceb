# pyright: strict
"""Time of one transfer for each transport between dies, from `_transports.toml`, by kind of work and SoC."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from opreplay.replay.ascend.profile import Quantity
from opreplay.traces.errors import FormatError
from opreplay.traces.toml_text import parse_toml

Work = Literal["copy", "reduce", "send"]
"""Kind of transfer. "copy" only copies, "reduce" also reduces the received data inline, and "send" goes to a single
peer.
"""


class Transport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of connection between dies: latency in microseconds, and bytes per second by kind of work."""

    latency: Quantity
    copy: Quantity
    reduce: Quantity | None = None
    send: Quantity | None = None
    socs: dict[str, dict[Work, Quantity]] = {}
    """Rates of single SoCs, by SoC name."""

    def rate(self, work: Work, soc: str = "") -> Quantity:
        """Return the rate (bytes per second) that the file gives for `soc`, otherwise the rate for all SoCs."""
        soc_rates = self.socs.get(soc, {})
        # To one peer alone links are quicker than in a mesh: what an SoC reaches there says nothing of that.
        other = None if work == "send" else next(iter(soc_rates.values()), None)
        return soc_rates.get(work) or other or getattr(self, work) or self.copy

    def time_us(self, size_bytes: float, work: Work, soc: str = "") -> float:
        """Return the time in microseconds for one packet."""
        return self.latency.value + size_bytes / self.rate(work, soc).value * 1e6


ALIASES = {"HCCS_SW": "HCCS", "HCCS SW": "HCCS", "UB": "HCCS", "ROCE": "RDMA"}
"""Other names of transports → name of the entry that is used for them."""


@lru_cache(maxsize=1)
def transports() -> dict[str, Transport]:
    """Return the shipped transports by name."""
    text = Path(__file__).with_name("_transports.toml").read_bytes()
    raw = parse_toml(text)
    if raw.pop("schema_version", None) != 1:
        raise FormatError("_transports.toml: schema_version must be 1")
    try:
        return msgspec.convert(raw, dict[str, Transport])
    except msgspec.ValidationError as error:
        raise FormatError(f"_transports.toml: {error}") from error


def transport_named(name: str, table: dict[str, Transport] | None = None) -> Transport | None:
    """Return the entry for a transport name in a profile; None for an unknown transport, such as LOCAL."""
    upper = name.upper()
    return (table or transports()).get(ALIASES.get(upper, upper))


def work_of(op: str) -> Work:
    """Return the kind of transfer of a collective, derived from its name."""
    plain = op.lower().replace("_", "")
    if "reduce" in plain:
        return "reduce"
    return "send" if any(word in plain for word in ("send", "recv", "receive")) else "copy"
