"""A page → one HTML file: no network, all text escaped, light and dark; the template and its script lie beside this."""

from __future__ import annotations

from importlib import resources
from typing import Any

from opreplay.replay.report.page.figures import HEIGHT, MARGIN, WIDTH, curve, roofline, strip
from opreplay.replay.report.page.model import Page
from opreplay.replay.report.text import safe, time_text

TEMPLATE = "page.html.j2"


def render(page: Page) -> str:
    """The whole file."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, auto_reload=False
    )
    environment.filters["safe_text"] = safe
    environment.filters["time"] = time_text
    # jinja's own filter would let markup through.
    del environment.filters["safe"]
    text = resources.files("opreplay.replay.report.page").joinpath(TEMPLATE).read_text(encoding="utf-8")
    values: dict[str, Any] = {
        "page": page,
        "strips": [strip(figure) for figure in page.strips],
        "rooflines": [roofline(figure) for figure in page.rooflines],
        "curves": [curve(figure) for figure in page.curves],
        "width": WIDTH,
        "height": HEIGHT,
        "margin": MARGIN,
        "most": [max((v or 0.0 for bar in figure.bars for v in bar.values_us), default=0.0) for figure in page.bars],
    }
    return environment.from_string(text).render(values)
