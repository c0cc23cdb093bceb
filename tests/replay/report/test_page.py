"""Pages: one file, no network, nothing of a trace acts in it, and a browser shows it without complaint."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.replay.report.page.model import Page, Point, Roofline
from opreplay.replay.report.page.render import render
from opreplay.replay.report.table import TIME, Column, Table
from tests.replay.timeline.machine import training

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x1b[31m\u202e {{ 7*7 }}"
OUTSIDE = re.compile(r"""(?:src|href|action)\s*=|url\(|@import|https?://""")


class Outline(HTMLParser):
    """Counts elements, and checks that they close."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag not in ("meta", "input", "br", "path", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1


def outline(text: str) -> Outline:
    found = Outline()
    found.feed(text)
    assert not found.open
    return found


def big_page(ops: int) -> Page:
    point = Point(
        name="aten::mm" + EVIL, detail="bf16[1]", bound="cube", time_us=9.0, arithmetic_us=5.0, memory_us=2.0, share=0.1
    )
    return Page(
        title=EVIL,
        headline=EVIL,
        command=EVIL,
        facts=((EVIL, EVIL),),
        notes=(EVIL,),
        rooflines=tuple(Roofline(device=f"d{i}", points=(point,) * ops) for i in range(3)),
        tables=(
            Table(
                EVIL,
                [
                    Column[int](EVIL, lambda row: f"{row} {EVIL}"),
                    *(Column[int](str(i), lambda row: 12.3, TIME) for i in range(10)),
                ],
                range(ops),
            ),
        ),
    )


def test_text_of_a_trace_does_nothing() -> None:
    text = render(big_page(3))
    found = outline(text)
    assert found.counts["script"] == 1
    assert "img" not in found.counts
    assert "{{ 7*7 }}" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_five_hundred_ops_are_small_and_need_no_network() -> None:
    text = render(big_page(500))
    assert len(text.encode()) < 1_000_000
    assert not OUTSIDE.search(re.sub(r"&[#\w]+;|onerror|src=x", "", text.replace("img src", "")))
    found = outline(text)
    assert found.counts["circle"] == 1500
    assert found.counts["tr"] == 501


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each command that makes one without measuring."""
    folder = tmp_path_factory.mktemp("pages")
    trace = training().write(folder / "t.json")
    table = folder / "kernel_details.csv"
    table.write_text(
        "Name,Type,Accelerator Core,Duration(us),Input Shapes,Input Data Types,Input Formats,Output Shapes,"
        "Output Data Types,Output Formats\n"
        'a,Add,AI_VECTOR_CORE,10.5,"""4096,1024;4096,1024""",FLOAT16;FLOAT16,ND;ND,"""4096,1024""",FLOAT16,ND\n'
    )
    made = {name: folder / f"{name}.html" for name in ("timeline", "simulate", "validate")}
    sample = Path("traces/samples/cnn_train.json.gz").absolute()
    for args in (
        ["timeline", trace, "--what-if", "gemm=0.5x"],
        ["simulate", str(sample), "--soc", "910b3", "--soc", "910b4"],
        ["validate", str(table), "--soc", "910b4"],
    ):
        result = CliRunner().invoke(opreplay, [*args, "--output", str(made[args[0]])])
        assert result.exit_code == 0, result.stderr
    return made


def test_every_page_says_what_made_it_and_has_its_parts(pages: dict[str, Path]) -> None:
    parts = {"timeline": ("Critical path", "recorded"), "simulate": ("Roofline", "910b4"), "validate": ("Kernels",)}
    for name, path in pages.items():
        text = path.read_text()
        outline(text)
        assert "Made by <code>" in text
        assert "Content-Security-Policy" in text
        for part in (*parts[name], 'scope="col"', "<h1>", 'lang="en"'):
            assert part in text, (name, part)


def test_a_run_and_a_comparison_write_pages(tmp_path: Path) -> None:
    sample = Path("traces/samples/cnn_train.json.gz").absolute()
    run, lines, compared = tmp_path / "run.html", tmp_path / "run.jsonl", tmp_path / "compare.html"
    args = ["run", str(sample), "--top", "2", "--soc", "910b3", "--output", str(run), "--output", str(lines)]
    result = CliRunner().invoke(opreplay, [*args, "--set", "op_time=50ms"])
    assert result.exit_code == 0, result.stderr
    text = run.read_text()
    assert "Roofline" in text
    assert "for opreplay op</button>" in text
    assert text.count('<td class="k"><code>aten::') == 2, "a call to paste is one line, taken whole by a click"
    assert "not replayed because" not in text, "a column that says nothing"
    outline(run.read_text())
    args = ["compare", str(lines), str(lines), "--output", str(compared)]
    assert CliRunner().invoke(opreplay, args).exit_code == 0
    outline(compared.read_text())
    assert CliRunner().invoke(opreplay, args).exit_code == 2
    for overwriting in ("--overwrite", "--force"):
        assert CliRunner().invoke(opreplay, [*args, overwriting]).exit_code == 0
    assert "--overwrite" not in CliRunner().invoke(opreplay, ["compare", "--help"]).output


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_it_without_complaint(pages: dict[str, Path], width: int, tmp_path: Path) -> None:
    browser = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no chromium on this machine: pages are not looked at in a browser")
    for name, path in pages.items():
        picture = tmp_path / f"{name}.png"
        base = [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--v=0",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width},1200",
        ]
        shown = subprocess.run(
            [*base, f"--screenshot={picture}", path.as_uri()], capture_output=True, text=True, timeout=120, check=False
        )
        assert "CONSOLE" not in shown.stderr, shown.stderr
        assert picture.stat().st_size > 5_000
        told = subprocess.run(
            [*base, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120, check=False
        )
        assert "<table" in told.stdout
