# pyright: strict
"""Writes the pictures of pages that the documents show, from bundled samples.

    python -m benchmarks.document_pictures [NAME ...]

Needs Chromium. Each picture is a part of a page that a command writes, 1,200 pixels wide and with at most 64 colours,
so that it stays small.
"""

from __future__ import annotations

import base64
import io
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from tests.replay.report.browser import Tab, tab

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
WIDTH = 1200
COLOURS = 64
SAMPLES = "traces/samples"
CONFIG = "hf:docs/examples/llama3_8b.json"


class Picture(NamedTuple):
    """A part of the page that a command writes with `--output`."""

    command: str
    section: str = ""
    """The heading of the part, or its beginning; the top of the page if empty."""
    height: int = 800


ALL = {
    "simulate": Picture(f"simulate {SAMPLES}/transformer_infer.json.gz --soc 910b3"),
    "timeline": Picture(f"timeline {SAMPLES}/cnn_train.json.gz"),
    "compare": Picture(f"compare {SAMPLES}/ddp_step_rank0.json.gz {SAMPLES}/ddp_step_rank1.json.gz"),
    "roofline": Picture(f"simulate {SAMPLES}/transformer_infer.json.gz --soc 910b3", "Roofline", 620),
    "vary": Picture(f"capture {CONFIG} --phase decode --vary batch=1,8,32,128 context=1k,4k,8k --soc 910b3"),
}

PLACE = """(heading => {
    const headings = [...document.querySelectorAll("h2")];
    const found = heading && headings.find(each => each.textContent.startsWith(heading));
    return heading && !found ? null : found ? found.getBoundingClientRect().top + window.scrollY - 8 : 0;
})"""


def drawn(browser: Tab, page: Path, picture: Picture) -> bytes:
    """Return a part of a page as PNG. Raises LookupError where the page has no such part."""
    browser.open(page, WIDTH)
    top = browser.value(f"{PLACE}({picture.section!r})")
    if top is None:
        raise LookupError(f"{picture.command}: its page has no part {picture.section!r}")
    clip = {"x": 0, "y": top, "width": WIDTH, "height": picture.height, "scale": 1}
    shot = browser.send("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
    whole = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    packed = io.BytesIO()
    whole.quantize(COLOURS, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
    return packed.getvalue()


def main() -> None:
    """Write the pictures that are named, or all."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, tab(Path(scratch) / "profile") as browser:
        # The page names its command: with paths as a reader types them.
        for folder in ("docs", "traces"):
            (Path(scratch) / folder).symlink_to(ROOT / folder)
        for name in sys.argv[1:] or ALL:
            opreplay = [sys.executable, "-c", "from opreplay.cli.start import main; main()"]
            arguments = [*ALL[name].command.split(), "--output", f"{name}.html"]
            subprocess.run([*opreplay, *arguments], cwd=scratch, stdout=subprocess.DEVNULL, check=True)
            body = drawn(browser, Path(scratch) / f"{name}.html", ALL[name])
            (PICTURES / f"{name}.png").write_bytes(body)
            print(f"{name}.png {len(body):,} bytes")


if __name__ == "__main__":
    main()
