"""Pages: one file, no network, nothing of a trace acts in it, and a browser shows it without complaint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

import opreplay as api
from opreplay.cli.main import opreplay
from opreplay.replay.report.page.figures import axis_begin, script
from opreplay.replay.report.page.model import (
    Answer,
    Bar,
    Bars,
    Curve,
    DeviceRoof,
    Flames,
    Lane,
    Line,
    Node,
    Opened,
    OverTime,
    Page,
    Point,
    Roof,
    Roofline,
    Steps,
    Stretch,
    Strip,
    Tree,
    Waterfall,
)
from opreplay.replay.report.page.parts import opened_ops
from opreplay.replay.report.page.render import render
from opreplay.replay.report.run import ops
from opreplay.replay.report.table import TIME, Column, Table, heaviest
from opreplay.replay.results.records import OpResult
from opreplay.replay.tile.programs import rows
from opreplay.replay.timeline.flames import Frame
from tests.replay.report.browser import Tab, tab
from tests.replay.timeline.machine import Machine, training

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
        if tag not in ("meta", "input", "br", "path", "img", "wbr"):
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


def big_page(ops: int, *, tasks: int = 3) -> Page:
    """Every part, each text of it hostile."""
    point = Point(
        key=EVIL,
        name="aten::mm" + EVIL,
        detail=EVIL,
        bound=EVIL,
        time_us=9.0,
        flops=5e9,
        moved_bytes=2e6,
        share=0.1,
    )
    stretches = tuple(
        Stretch(start_us=10.0 * i, end_us=10.0 * i + 8.0, kind="kernel", name=f"{EVIL}{i % 100}", op=EVIL)
        for i in range(tasks)
    )
    roof = Roof(flops_per_s={"float16": 1e14, EVIL: 1e13}, bytes_per_s=1e12)
    return Page(
        title=EVIL,
        headline=EVIL,
        command=EVIL,
        answers=(Answer(name=EVIL, ratio=EVIL, band=EVIL, detail=EVIL),),
        facts=((EVIL, EVIL),),
        notes=(EVIL,),
        bars=(Bars(title=EVIL, what=EVIL, series=(EVIL,), bars=(Bar(name=EVIL, values_us=(1.0,)),)),),
        trees=(Tree(title=EVIL, series=(EVIL,), totals_us=(2.0,), roots=(Node(name=EVIL, values_us=(1.0,)),)),),
        waterfalls=(Waterfall(title=EVIL, begin=(EVIL, 3.0), changes=((EVIL, 1.0), (EVIL, -2.0)), end=(EVIL, 2.0)),),
        over_time=(OverTime(title=EVIL, unit=EVIL, points=((0.0, 1.0), (5.0, 3.0)), note=EVIL),),
        steps=Steps(title=EVIL, parts=(EVIL,), steps=((EVIL, (1.0,)),), outliers={EVIL: EVIL}, note=EVIL),
        flames=Flames(title=EVIL, frames=(Frame(name=EVIL, kind="frame", depth=0, start_us=0.0, us=9.0),), note=EVIL),
        strips=(Strip(title=EVIL, lanes=(Lane(name=EVIL, stretches=stretches),)),),
        roofline=Roofline(
            devices=tuple(DeviceRoof(device=f"{EVIL}{i}", roof=roof, points=(point,) * ops) for i in range(3))
        ),
        curves=(Curve(title=EVIL, across=EVIL, lines=(Line(name=EVIL, points=((1.0, 2.0), (4.0, 5.0))),)),),
        tables=(
            Opened(
                table=Table(
                    EVIL,
                    [
                        Column[int](EVIL, lambda row: f"{row} {EVIL}"),
                        *(Column[int](str(i), lambda row: 12.3, TIME) for i in range(10)),
                    ],
                    range(ops),
                ),
                key=lambda row: f"{row}",
                name=lambda row: EVIL,
                details=lambda row: [(EVIL, EVIL)],
            ),
        ),
    )


@pytest.mark.slow
def test_text_of_a_trace_does_nothing() -> None:
    text = render(big_page(3)).replace(script(), "")
    found = outline(text)
    assert found.counts["script"] == 3, "figures as data, Bokeh, and the page's own"
    assert "img" not in found.counts
    assert "{{ 7*7 }}" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    policy = text.partition('http-equiv="Content-Security-Policy"')[2].partition(">")[0]
    assert policy.count("sha256-") == 2
    assert "unsafe-eval" not in policy
    assert "script-src 'unsafe" not in policy


@pytest.mark.slow
def test_five_hundred_ops_are_small_and_need_no_network() -> None:
    text = render(big_page(500, tasks=10_000))
    assert len(text.encode()) < 2_500_000
    own = re.sub(r"&[#\w]+;|onerror|src=x", "", text.replace(script(), "").replace("img src", ""))
    assert not OUTSIDE.search(own)
    assert outline(text).counts["tr"] == 2 + 1 + 2 * 500, (
        "bars and their head, a head of ops, each op and what it opens to"
    )


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


@pytest.mark.slow
def test_every_page_says_what_made_it_and_has_its_parts(pages: dict[str, Path]) -> None:
    parts = {
        "timeline": (
            "Critical path",
            "recorded",
            "Ops of the step",
            "All steps",
            "Kernel launches",
            "waiting",
            "Roofline",
        ),
        "simulate": ("Roofline", "910b4", "TFLOP/s"),
        "validate": ("Kernels",),
    }
    for name, path in pages.items():
        text = path.read_text()
        outline(text)
        assert "Made by <code>" in text
        assert len(text.encode()) < 2_500_000
        assert "Content-Security-Policy" in text
        for part in (*parts[name], 'scope="col"', "<h1>", 'lang="en"'):
            assert part in text, (name, part)


@pytest.mark.slow
def test_a_run_and_a_comparison_write_pages(tmp_path: Path) -> None:
    sample = Path("traces/samples/cnn_train.json.gz").absolute()
    run, lines, compared = tmp_path / "run.html", tmp_path / "run.jsonl", tmp_path / "compare.html"
    args = ["run", str(sample), "--top", "2", "--soc", "910b3", "--output", str(run), "--output", str(lines)]
    result = CliRunner().invoke(opreplay, [*args, "--set", "op_time=50ms"])
    assert result.exit_code == 0, result.stderr
    text = run.read_text()
    assert "Roofline" in text
    assert text.count("<dt>reproduce</dt>") == 2
    assert text.count("<dt>the call alone</dt><dd>aten::") == 2
    assert "not replayed because" not in text, "a column that says nothing"
    outline(run.read_text())
    args = ["compare", str(lines), str(lines), "--output", str(compared)]
    assert CliRunner().invoke(opreplay, args).exit_code == 0
    outline(compared.read_text())
    assert CliRunner().invoke(opreplay, args).exit_code == 2
    for overwriting in ("--overwrite", "--force"):
        assert CliRunner().invoke(opreplay, [*args, overwriting]).exit_code == 0
    assert "--overwrite" not in CliRunner().invoke(opreplay, ["compare", "--help"]).output


CUT = """[...document.querySelectorAll("body *")].filter(shown => {
  if (["SCRIPT", "STYLE"].includes(shown.tagName) || shown.closest(".wide") || !shown.getClientRects().length)
    return false;
  const text = [...shown.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
  const box = shown.getBoundingClientRect();
  return text && (box.right > innerWidth + 1 || box.left < -1 || (getComputedStyle(shown).overflow !== "visible" &&
    (shown.scrollWidth > shown.clientWidth + 1 || shown.scrollHeight > shown.clientHeight + 1)));
}).map(shown => shown.textContent)"""
"""Texts that are not shown whole; tables scroll in a frame of their own."""
TOOLTIPS = """(() => {
  const texts = [], walk = root => {
    for (const shown of root.querySelectorAll("*")) {
      if (shown.classList.contains("bk-Tooltip") || shown.localName.startsWith("bk-")) texts.push(shown.textContent);
      if (shown.shadowRoot) { texts.push(shown.shadowRoot.textContent); walk(shown.shadowRoot); }
    }
  };
  walk(document);
  return texts;
})()"""
"""What Bokeh shows beside its canvases."""
MARK = """(() => {
  const view = views.find(view => view.model.renderers.some(r => r.data_source.name === "%s"));
  const renderer = view.model.renderers.find(r => r.data_source.name === "%s" && r.glyph.type !== "Text");
  view.el.scrollIntoView({block: "center", behavior: "instant"});
  const {data} = renderer.data_source, width = i => data.right[i] - data.left[i];
  const ends = renderer.data_source.name === "bars" ? 1 : 0;
  let best = ends;
  if (data.right) for (let i = ends; i < data.right.length - ends; i++) if (width(i) > width(best)) best = i;
  const x = data.x ? data.x[best] : (data.left[best] + data.right[best]) / 2;
  const y = data.y ? data.y[best] : (data.top[best] + data.bottom[best]) / 2;
  const box = view.canvas_view.el.getBoundingClientRect(), {x_scale, y_scale} = view.frame;
  return [box.left + x_scale.compute(x), box.top + y_scale.compute(y),
          data.key[best], data.name[best]];
})()"""
"""Where the first mark or the widest bar of an op is, which op it stands for, and what it says."""


def mark_of(shown: Tab, source: str) -> tuple[float, float, str, str]:
    x, y, key, label = shown.value(MARK % (source, source))
    shown.value("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
    return x, y, key, label[:20]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with tab(tmp_path_factory.mktemp("profile")) as shown:
        yield shown


@pytest.fixture(scope="module")
def all_pages(pages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Those of commands that measure, too."""
    folder = tmp_path_factory.mktemp("measured")
    sample = str(Path("traces/samples/transformer_infer.json.gz").absolute())
    lines = folder / "run.jsonl"
    made = {name: folder / f"{name}.html" for name in ("run", "many", "compare", "check", "op")}
    both = [sample, sample.replace("transformer_infer", "cnn_train")]
    calls = ["aten::mm(bf16[64,n], bf16[n,32])", "--vary", "n=16,64", "--soc", "910b3", "--soc", "910c"]
    for args in (
        ["run", *both, "--top", "2", "--set", "op_time=30ms", "--soc", "910b3", "-o", str(made["many"])],
        ["check", "aten::relu", "--set", "speed_time=0.1", "-o", str(made["check"])],
        ["op", *calls, "--set", "op_time=2ms", "-o", str(made["op"])],
        ["run", sample, "--top", "4", "--op-time", "30ms", "--soc", "910b3", "-o", str(made["run"]), "-o", str(lines)],
        ["compare", str(lines), sample, "--output", str(made["compare"])],
    ):
        result = CliRunner().invoke(opreplay, args)
        assert result.exit_code == 0, result.stderr
    case = ["--case", "rms_norm x=bf16[64,1024] w=bf16[1024] eps=1e-5", "--no-values", "--format", "html"]
    made["tile"] = folder / "tile.html"
    made["tile"].write_text(CliRunner().invoke(opreplay, ["tile", rows.__file__, *case]).stdout)
    return {**pages, **made}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", "many", "simulate", "timeline", "compare", "validate", "check", "op", "tile"])
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (400, False)])
def test_a_browser_shows_it_without_complaint(
    all_pages: dict[str, Path], chromium: Tab, name: str, width: int, dark: bool
) -> None:
    chromium.complaints.clear()
    chromium.requests.clear()
    chromium.open(all_pages[name], width, dark=dark)
    assert chromium.complaints == []
    assert chromium.requests == [all_pages[name].resolve().as_uri()]
    assert chromium.value(CUT) == []
    assert chromium.value("document.documentElement.scrollWidth <= innerWidth")
    answer = chromium.value("document.querySelector('.answer b').getBoundingClientRect().bottom")
    assert answer < 900, "the answer is there without scrolling"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "source"), [("run", "ops"), ("simulate", "ops"), ("timeline", "tasks"), ("compare", "bars"), ("op", "ops")]
)
@pytest.mark.parametrize("width", [1280, 400])
def test_a_figure_says_what_is_under_the_pointer_and_a_click_finds_its_row(
    all_pages: dict[str, Path], chromium: Tab, name: str, source: str, width: int
) -> None:
    chromium.open(all_pages[name], width)
    x, y, key, label = mark_of(chromium, source)
    chromium.mouse("mouseMoved", x, y)
    chromium.wait(f"{TOOLTIPS}.some(text => text.includes({json.dumps(label)}))")
    chromium.click(x, y)
    chromium.wait("document.querySelector('tr.chosen')")
    chosen = chromium.value(
        "[...document.querySelectorAll('tr.chosen')].map(row => [row.dataset.key, row.dataset.name])"
    )
    assert chosen
    assert all(key in row for row in chosen)
    assert chromium.complaints == []


@pytest.mark.slow
def test_hostile_text_is_shown_and_no_more(tmp_path: Path, chromium: Tab) -> None:
    page = tmp_path / "evil.html"
    page.write_text(render(big_page(3)))
    chromium.complaints.clear()
    chromium.requests.clear()
    chromium.open(page, 1280)
    x, y, _, _ = mark_of(chromium, "ops")
    chromium.mouse("mouseMoved", x, y)
    chromium.wait(f"{TOOLTIPS}.some(text => text.includes('<script>'))")
    assert chromium.value("document.querySelectorAll('img').length") == 0
    assert chromium.complaints == []
    assert chromium.requests == [page.resolve().as_uri()]


@pytest.mark.slow
def test_a_timeline_of_ten_thousand_tasks_zooms_fluently(tmp_path: Path, chromium: Tab) -> None:
    page = tmp_path / "long.html"
    page.write_text(render(big_page(3, tasks=10_000)))
    chromium.open(page, 1280)
    x, y, _, _ = mark_of(chromium, "tasks")
    span = "(range => range.end - range.start)(plots.find(plot => plot.x_range.bounds).x_range)"
    frames = "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(performance.now()))))"
    whole = chromium.value(span)
    spent: list[float] = []
    for _ in range(10):
        before = chromium.value("performance.now()")
        chromium.mouse("mouseWheel", x, y, deltaX=0, deltaY=-120, modifiers=2)
        spent.append(chromium.value(frames) - before)
    assert chromium.value(span) < whole / 2
    assert sorted(spent)[5] < 250, "milliseconds a step of the wheel, two frames with all that they draw"


@pytest.mark.slow
def test_a_step_is_found_in_its_table_and_a_stack_widens(tmp_path: Path, chromium: Tab) -> None:
    machine = Machine()
    for _ in range(3):
        machine.begin()
        begin = machine.now
        for layer in range(4):
            outer = machine.now
            machine.host(300.0)
            machine.op("aten::mm", 40.0, ("gemm", 100.0))
            machine._add("python_function", f"nn.Module: Layer_{layer}", outer, machine.now - outer)
        machine._add("python_function", "nn.Module: Model_0", begin, machine.now - begin)
        machine.synchronize()
        machine.end()
    trace, page = machine.write(tmp_path / "t.json"), tmp_path / "t.html"
    assert CliRunner().invoke(opreplay, ["timeline", trace, "--output", str(page)]).exit_code == 0
    chromium.complaints.clear()
    chromium.open(page, 1280)
    x, y, key, _ = mark_of(chromium, "steps")
    chromium.click(x, y)
    chromium.wait("document.querySelector('tr.chosen')")
    assert chromium.value("document.querySelector('tr.chosen').dataset.key") == key
    flames = "plots.find(plot => plot.name === 'flames')"
    shown = chromium.value(f"{flames}.renderers.flatMap(r => Array.from(r.data_source.data.name ?? []))")
    assert sorted(shown) == ["Layer", "Model", "aten::mm"]
    chromium.value(
        f"{flames}.renderers.find(r => r.data_source.data.name?.[0] === 'aten::mm').data_source.selected.indices = [0]"
    )
    left, right = chromium.value(f"[{flames}.x_range.start, {flames}.x_range.end]")
    assert right - left < chromium.value(f"{flames}.x_range.bounds[1]") / 2
    assert chromium.complaints == []


@pytest.mark.slow
def test_lines_over_time_move_with_the_timeline(all_pages: dict[str, Path], chromium: Tab) -> None:
    chromium.open(all_pages["timeline"], 1280)
    chromium.value("plots.find(plot => plot.name === 'timeline').x_range.setv({start: 1, end: 2})")
    moved = chromium.value("plots.filter(plot => plot.name === 'over_time').map(p => [p.x_range.start, p.x_range.end])")
    assert moved == [[1, 2]]


@pytest.mark.slow
def test_a_long_table_shows_its_first_rows_until_all_are_asked_for(tmp_path: Path, chromium: Tab) -> None:
    page = tmp_path / "long.html"
    page.write_text(render(big_page(40)))
    chromium.open(page, 1280)
    rows = (
        "[...document.querySelectorAll('#rows1 tbody tr:not(.more)')].filter(row => row.getClientRects().length).length"
    )
    assert chromium.value(rows) == 15
    chromium.value("document.querySelector('button.whole').click()")
    assert chromium.value(rows) == 40
    chromium.value("document.querySelector('button.whole').click()")
    chromium.value("select('39')")
    assert chromium.value(rows) == 16


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", "simulate", "step", "compare", "sweep"])
def test_a_notebook_shows_the_figures_of_the_page(name: str, tmp_path: Path, chromium: Tab) -> None:
    sample = str(Path("traces/samples/cnn_train.json.gz").absolute())
    fake = api.RunOptions(executor="fake", isolation="none", op_time_s=0.001)

    def measured() -> api.Results:
        return api.run(api.open(sample, top=3), soc="910b3", options=fake)

    shown = {
        "run": (measured, 3),
        "simulate": (lambda: api.simulate(api.open(sample, top=3), "910b3"), 2),
        "step": (lambda: api.step(sample), 0),
        "compare": (lambda: api.compare(measured(), measured()), 1),
        "sweep": (lambda: api.sweep("aten::relu(f32[n])", vary=["n=8,64"], soc="910b3"), 1),
    }
    make, figures = shown[name]
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><meta charset=utf-8><body>{make()._repr_html_()}</body>")
    chromium.complaints.clear()
    chromium.requests.clear()
    chromium.open(notebook, 1280, drawn=False)
    with chromium.frame():
        assert int(chromium.value("document.body.dataset.drawn")) == figures
        assert chromium.value("document.querySelector('.verdict').textContent")
        assert chromium.value(CUT) == []
    assert chromium.complaints == []
    assert [url for url in chromium.requests if not url.startswith("about:")] == [notebook.resolve().as_uri()]


@pytest.mark.parametrize(
    ("changes", "end", "begin"), [([-1.0, -0.4], 33.8, 33.45), ([-25.0, 23.6], 33.8, 0.0), ([], 35.2, 0.0)]
)
def test_a_waterfall_begins_where_its_changes_do(changes: list[float], end: float, begin: float) -> None:
    """From 0, a step of 35.2 ms that became one of 33.8 was two full bars with slivers between them."""
    assert axis_begin(35.2, changes, end) == pytest.approx(begin)


def test_the_command_to_reproduce_names_what_the_op_needs() -> None:
    result = OpResult(id="0123456789ab", name="mylib::op", count=2, status="replayed", recorded_share=0.5)
    options = {
        "plugins": ["my ops.py"],
        "allow_imports": {"mylib": "mylib.ops"},
        "init_args": ["moe_routing.distribution=zipf"],
    }

    def command(source: str) -> str | None:
        opened = opened_ops(heaviest("Ops", [ops.NAME], [result], lambda row: row.recorded_share), source, options)
        assert opened.details is not None
        return dict(opened.details(result)).get("reproduce")

    assert command("a trace.json") == (
        f"opreplay run 'a trace.json' --include {result.id} --plugin 'my ops.py' --allow-import mylib=mylib.ops "
        "--set init_arg=moe_routing.distribution=zipf"
    )
    assert command("") is None
