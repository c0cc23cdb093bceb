"use strict";
// Tables: a click on a heading sorts, on a name opens its row; the field above filters.
const SHOWN = 15;
const moreOf = row => row.nextElementSibling?.classList.contains("more") ? row.nextElementSibling : null;
function open(row, wanted) {
  const more = moreOf(row);
  if (!more) return;
  more.hidden = !wanted;
  row.querySelector(".open").setAttribute("aria-expanded", String(wanted));
}
for (const table of document.querySelectorAll("table[data-count]")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const rows = [...body.rows].filter(row => !row.classList.contains("more"));
  const input = document.querySelector(`input[data-for="${table.id}"]`), count = document.getElementById(table.dataset.count);
  const pairs = new Map(rows.map(row => [row, moreOf(row)]));
  heads.forEach((head, i) => head.querySelector("button").addEventListener("click", () => {
    const number = head.classList.contains("n"), was = head.getAttribute("aria-sort");
    const down = was ? was === "ascending" : number, sign = down ? -1 : 1;
    heads.forEach(h => h.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => number ? ("v" in row.cells[i].dataset ? +row.cells[i].dataset.v : NaN) : row.cells[i].textContent;
    rows.sort((a, b) => {
      const x = key(a), y = key(b);
      if (number) return isNaN(x) ? (isNaN(y) ? 0 : 1) : isNaN(y) ? -1 : sign * (x - y);
      return sign * x.localeCompare(y);
    });
    body.append(...rows.flatMap(row => pairs.get(row) ? [row, pairs.get(row)] : [row]));
    shorten();
  }));
  // The first rows, until somebody asks for all or filters.
  const whole = document.querySelector(`button[data-all="${table.id}"]`);
  function shorten() {
    rows.forEach((row, i) => row.classList.toggle("beyond", i >= SHOWN && whole.getAttribute("aria-pressed") !== "true" && !input.value));
    whole.hidden = rows.length <= SHOWN || !!input.value;
  }
  whole.addEventListener("click", () => {
    const pressed = whole.getAttribute("aria-pressed") !== "true";
    whole.setAttribute("aria-pressed", String(pressed));
    whole.textContent = pressed ? `first ${SHOWN} rows` : `all ${rows.length} rows`;
    shorten();
  });
  body.addEventListener("click", event => {
    const button = event.target.closest(".open");
    if (button) open(button.closest("tr"), button.getAttribute("aria-expanded") !== "true");
  });
  const all = count.textContent;
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    let shown = 0;
    for (const row of rows) {
      row.hidden = !(row.textContent + " " + (pairs.get(row)?.textContent ?? "")).toLowerCase().includes(wanted);
      if (row.hidden) open(row, false);
      shown += !row.hidden;
    }
    count.textContent = wanted ? `${shown} of ${all}` : all;
    shorten();
  });
  shorten();
}
// A click on a figure selects the rows of its op.
function select(key) {
  const rows = [...document.querySelectorAll("tr[data-key]")].filter(row => [row.dataset.key, row.dataset.name].includes(key));
  document.querySelectorAll("tr.chosen").forEach(row => row.classList.remove("chosen"));
  rows.forEach(row => { row.hidden = false; row.classList.remove("beyond"); row.classList.add("chosen"); });
  if (!rows.length) return;
  open(rows[0], true);
  rows[0].scrollIntoView({block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth"});
}
// Figures: Bokeh draws on canvases, which style sheets do not reach.
const plots = [], views = [];
function paint() {
  const style = getComputedStyle(document.documentElement), dim = style.getPropertyValue("--dim").trim();
  const fg = style.getPropertyValue("--fg").trim();
  for (const plot of plots) {
    for (const axis of [...plot.left, ...plot.below])
      axis.setv({major_label_text_color: dim, axis_label_text_color: dim, axis_line_color: dim, major_tick_line_color: dim});
    for (const {name, glyph} of plot.renderers) {
      if (name === "text") glyph.text_color = {value: fg};
      if (name === "path") glyph.fill_color = glyph.line_color = {value: fg};
    }
  }
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
function write(plot, figure, tasks, labels) {
  // Names of the tasks on which there is room for some letters.
  const {start, end} = plot.x_range, width = figure.clientWidth - 110, x = [], y = [], text = [];
  for (const source of tasks) {
    const {left, right, y: at, name} = source.data;
    for (let i = 0; i < left.length; i++) {
      if (right[i] < start || left[i] > end) continue;
      const from = Math.max(left[i], start), letters = Math.floor((Math.min(right[i], end) - from) / (end - start) * width / 6.2) - 1;
      if (letters < 4) continue;
      x.push(from); y.push(at[i]); text.push(name[i].length > letters ? name[i].slice(0, letters - 1) + "…" : name[i]);
    }
  }
  labels.data = {x, y, text};
}
async function draw({id, item, names}) {
  const target = document.getElementById(id), view = (await Bokeh.embed.embed_item(item, id)).roots[0], plot = view.model;
  plots.push(plot);
  views.push(view);
  const sources = plot.renderers.map(renderer => renderer.data_source), named = name => sources.filter(s => s.name === name);
  const tasks = named("tasks"), labels = named("labels")[0];
  for (const source of new Set(sources)) {
    // Columns of int32 are places of texts.
    const texts = Object.entries(source.data).filter(([, values]) => values instanceof Int32Array);
    const {left, right} = source.data, takes = source.name === "tasks" ? {takes: left.map((from, i) => right[i] - from)} : {};
    source.data = {...source.data, ...takes, ...Object.fromEntries(texts.map(([key, at]) => [key, Array.from(at, i => names[i])]))};
  }
  for (const source of new Set(sources))
    source.selected.properties.indices.change.connect(() => {
      const at = source.selected.indices[0], {key, left, right} = source.data;
      if (at === undefined) return;
      if (plot.name === "flames") plot.x_range.setv({start: left[at], end: right[at]});
      else if (key) select(key[at]);
    });
  if (plot.name === "over_time") {
    const range = plots.find(other => other.name === "timeline")?.x_range, follow = () => plot.x_range.setv({start: range.start, end: range.end});
    range?.properties.start.change.connect(follow);
    range?.properties.end.change.connect(follow);
  }
  if (labels) {
    let waits = false;
    const later = () => {
      if (waits) return;
      waits = true;
      requestAnimationFrame(() => { waits = false; write(plot, target, tasks, labels); });
    };
    plot.x_range.properties.start.change.connect(later);
    plot.x_range.properties.end.change.connect(later);
    later();
  }
}
const data = document.getElementById("figures");
if (data) {
  Bokeh.set_log_level("warn");
  (async () => { for (const figure of JSON.parse(data.textContent)) await draw(figure); })().then(() => { paint(); document.body.dataset.drawn = plots.length; });
} else document.body.dataset.drawn = 0;
