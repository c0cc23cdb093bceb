# pyright: strict
"""What one transfer takes on each transport between dies: read from `_transports.toml`, looked up by kind and SoC."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import Literal

import msgspec

from opreplay.replay.ascend.profile import Quantity
from opreplay.traces.errors import FormatError
from opreplay.traces.toml_text import parse_toml

Work = Literal["copy", "reduce", "send"]
"""What is done on arrival: nothing; a reduction in line; nothing, with one peer alone."""


class Transport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of connection: microseconds to start, bytes a second by what is done with them."""

    latency: Quantity
    copy: Quantity
    reduce: Quantity | None = None
    send: Quantity | None = None
    socs: dict[str, dict[Work, Quantity]] = {}
    """Rates of one SoC, by name."""

    def rate(self, work: Work, soc: str = "") -> Quantity:
        """Bytes a second, of this SoC where there is one, else of all."""
        soc_rates = self.socs.get(soc, {})
        # To one peer alone links are quicker than in a mesh: what an SoC reaches there says nothing of that.
        other = None if work == "send" else next(iter(soc_rates.values()), None)
        return soc_rates.get(work) or other or getattr(self, work) or self.copy

    def time_us(self, size_bytes: float, work: Work, soc: str = "") -> float:
        """Of one packet."""
        return self.latency.value + size_bytes / self.rate(work, soc).value * 1e6


ALIASES = {"HCCS_SW": "HCCS", "HCCS SW": "HCCS", "UB": "HCCS", "ROCE": "RDMA"}
"""Other spellings of transports → the entry that stands for them."""


@lru_cache(maxsize=1)
def transports() -> dict[str, Transport]:
    """The table that ships, by transport."""
    text = (resources.files("opreplay.replay.ascend.devices") / "_transports.toml").read_bytes()
    raw = parse_toml(text)
    if raw.pop("schema_version", None) != 1:
        raise FormatError("_transports.toml: schema_version must be 1")
    try:
        return msgspec.convert(raw, dict[str, Transport])
    except msgspec.ValidationError as error:
        raise FormatError(f"_transports.toml: {error}") from error


def transport_named(name: str, table: dict[str, Transport] | None = None) -> Transport | None:
    """The entry for a transport as a profile spells it; None for one that is not known, such as LOCAL."""
    upper = name.upper()
    return (table or transports()).get(ALIASES.get(upper, upper))


def work_of(op: str) -> Work:
    """What a collective does with what arrives, by its name."""
    plain = op.lower().replace("_", "")
    if "reduce" in plain:
        return "reduce"
    return "send" if any(word in plain for word in ("send", "recv", "receive")) else "copy"
