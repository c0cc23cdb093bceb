# pyright: strict
"""Render a page as one HTML file that needs no network access.

All text is escaped. The page has a light and a dark mode. The template and its script are in this folder.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any, cast

import msgspec

from opreplay.replay.host.environment import opreplay_version
from opreplay.replay.report.page import figures
from opreplay.replay.report.page.model import Opened, Page
from opreplay.replay.report.table import Column
from opreplay.replay.report.text import middle, quotient, safe, share_text, time_text

_JOINT = re.compile(r"([_:/.])(?=[A-Za-z])")
NAME_CHARS = 90
"""Maximum length of a name in a table, in characters."""
TEMPLATE, SCRIPT = "page.html.j2", "page.js"


def render(page: Page) -> str:
    """Return the whole HTML file."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, auto_reload=False
    )
    filters = cast("dict[str, Any]", vars(environment)["filters"])
    filters |= {"safe_text": safe, "time": time_text, "breaking": _breaking}
    # jinja's own filter would let markup through.
    del filters["safe"]
    page = msgspec.structs.replace(page, bars=tuple(one for one in page.bars if one.bars))
    drawn = figures.figures_of(page)
    scripts = [*([figures.script()] if drawn else []), _file(SCRIPT)]
    values: dict[str, Any] = {
        "page": page,
        "version": opreplay_version(),
        "figures": drawn,
        "share_of": _share,
        "cell": _cell,
        "data": Markup(_in_script(drawn)) if drawn else "",
        "scripts": [Markup(script) for script in scripts],
        "hashes": " ".join(f"'sha256-{_sha256(script)}'" for script in scripts),
        "longest": [figure.longest_us for figure in page.bars],
        "tables": [table for part in page.tables if (table := _opened(part)).table.rows],
    }
    return environment.from_string(_file(TEMPLATE)).render(values)


def _cell(column: Column[Any], row: Any) -> str:
    """Return the table text of a cell; the middle of long kernel names is cut out."""
    text = column.shown(row)
    return middle(text, NAME_CHARS) if column.form == "name" else text


def _breaking(text: str) -> Any:
    """Return a name as HTML that may wrap after underscores and colons."""
    from markupsafe import Markup, escape

    return Markup(_JOINT.sub(r"\1<wbr>", str(escape(safe(text)))))


def _share(us: float, total_us: float) -> str:
    return share_text(quotient(us, total_us))


def _file(name: str) -> str:
    return resources.files("opreplay.replay.report.page").joinpath(name).read_text(encoding="utf-8")


def _sha256(script: str) -> str:
    """Return the hash of a script for the content security policy, which allows only the page's own scripts."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _in_script(drawn: Sequence[figures.Drawn]) -> str:
    """Return the figures as JSON that cannot close the enclosing script element."""
    body = [{"id": figure.id, "item": figure.item, "names": figure.names} for figure in drawn]
    text = msgspec.json.encode(body).decode()
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _opened(table: Any) -> Opened:
    return table if isinstance(table, Opened) else Opened(table=table, key=lambda row: "")
