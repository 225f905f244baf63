"use strict";
// The page around the graphs: machines, addresses, the filter, small graphs in the table.

class Page {
  constructor(data) {
    this.data = data;
    this.sections = [...document.querySelectorAll("section.machine")];
    this.tabs = [...document.querySelectorAll(".tabs a")];
    this.title = document.title;
    this.plots = [];
    this.axes = data.machines.map((machine) => new Axis(data, machine));
    this.sections.forEach((section) => {
      const box = section.querySelector(".filter input");
      box.addEventListener("input", () => {
        this.filter(section, box.value);
        history.replaceState(null, "", addressOf(...this.shown, box.value));
      });
    });
    addEventListener("hashchange", () => this.follow());
    document.addEventListener("keydown", (event) => this.onKey(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      for (const plot of this.plots) plot.redraw();
    });
    // `kvtrail report --open` serves both; elsewhere asv's pages may not lie beside this one.
    if (location.hostname === "127.0.0.1") {
      document.querySelector(".asv")?.replaceChildren(element("a", { href: "../html/index.html" }, "asv's own pages of the same results"));
    }
    this.follow();
  }

  /** Shows what the address names: a machine, or graphs of one; other addresses are the browser's. */
  follow() {
    const [path, words] = location.hash.slice(1).split("?q=");
    const [name, ...rest] = path.split("/").map(decoded);
    const key = rest.length ? rest.join("/") : undefined;
    const named = this.data.machines.findIndex((machine) => machine.name === name);
    if (named < 0 && name) return;
    const number = Math.max(0, named);
    const machine = this.data.machines[number];
    const section = this.sections[number];
    this.sections.forEach((other) => (other.hidden = other !== section));
    this.tabs.forEach((tab, place) => {
      if (place === number) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    });
    this.shown = [machine.name, key];
    const box = section.querySelector(".filter input");
    // Links name no filter, and leave the one that there is.
    if (words !== undefined) box.value = decoded(words);
    else if (box.value) history.replaceState(null, "", addressOf(machine.name, key, box.value));
    this.filter(section, box.value);
    drawSmallGraphs(section, machine);
    const graphs = key === undefined ? [] : machine.graphs.filter(
      (graph) => graph.lines.length && (graph.key === key || benchmarkOf(graph) === key));
    document.title = graphs.length ? `${key} on ${machine.name}, ${this.title}` : this.title;
    this.showGraphs(section.querySelector(".panel"), number, graphs, key);
  }

  showGraphs(panel, number, graphs, key) {
    this.plots.forEach((plot) => plot.destroy());
    this.plots = [];
    document.querySelectorAll(".panel").forEach((other) => other.replaceChildren());
    panel.hidden = graphs.length === 0;
    if (panel.hidden) return;
    const machine = this.data.machines[number];
    const axis = this.axes[number];
    panel.append(this.controls(number, key), ...graphs.map((graph) => {
      const plot = new Plot(this.data, machine, graph, axis, say);
      this.plots.push(plot);
      return figureOf(plot);
    }));
    axis.plots = this.plots;
    panel.scrollIntoView({ block: "start" });
  }

  /** Which graph, along what, and the way out. */
  controls(number, key) {
    const machine = this.data.machines[number];
    const drawn = machine.graphs.filter((graph) => graph.lines.length);
    const counts = new Map();
    drawn.forEach((graph) => counts.set(benchmarkOf(graph), (counts.get(benchmarkOf(graph)) ?? 0) + 1));
    const groups = new Map();
    const options = [];
    for (const graph of drawn) {
      const benchmark = benchmarkOf(graph);
      if (!groups.has(graph.group)) groups.set(graph.group, element("optgroup", { label: graph.group }));
      const add = (value, text) => {
        groups.get(graph.group).append(element("option", { value, selected: value === key }, text));
        options.push(value);
      };
      if (counts.get(benchmark) > 1 && !options.includes(benchmark)) {
        add(benchmark, `${graph.title.split(",")[0]}, all ${counts.get(benchmark)}`);
      }
      add(graph.key, graph.title);
    }
    const go = (value) => (location.hash = addressOf(machine.name, value));
    const at = options.indexOf(key);
    const turn = (by, text, label) => element("button", {
      type: "button", "aria-label": label, title: label, disabled: at + by < 0 || at + by >= options.length,
      onclick: () => go(options[at + by]),
    }, text);
    const hasDates = machine.commits.every((place) => this.data.commits.date[place] !== null);
    const way = (byDate, text) => element("label", {}, element("input", {
      type: "radio", name: "axis", checked: this.axes[number].byDate === byDate,
      onchange: () => this.layOut(number, byDate),
    }), ` ${text}`);
    return element("div", { class: "controls" },
      element("select", { "aria-label": "Benchmark", onchange: (event) => go(event.target.value) }, ...groups.values()),
      turn(-1, "←", "The benchmark before"), turn(1, "→", "The next benchmark"),
      hasDates
        ? element("fieldset", {}, element("legend", {}, "by"), way(false, "commit"), way(true, "date"))
        : "",
      element("button", { type: "button", class: "close", onclick: () => go() }, "Close"));
  }

  layOut(number, byDate) {
    this.axes[number].layOut(byDate);
    this.follow();
    document.querySelector(".panel input:checked")?.focus();
  }

  filter(section, text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...section.querySelectorAll(".latest tr[data-graph]")];
    const machine = this.data.machines[this.sections.indexOf(section)];
    let shown = 0;
    for (const row of rows) {
      const { key, group } = machine.graphs[row.dataset.graph];
      const found = `${key} ${group} ${row.textContent}`.toLowerCase();
      row.hidden = !words.every((word) => found.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    for (const body of section.querySelectorAll(".latest tbody")) {
      body.hidden = !body.querySelector("tr[data-graph]:not([hidden])");
    }
    section.querySelector(".filter .count").textContent = words.length ? `${shown} of ${rows.length}` : "";
  }

  onKey(event) {
    const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    document.querySelector("section.machine:not([hidden]) .filter input").focus();
    event.preventDefault();
  }
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** An address on this page: a machine, a graph of it, and the words that its table is filtered by. */
function addressOf(machine, key, words) {
  const path = [machine, key].filter((part) => part !== undefined).map(encodeURIComponent).join("/");
  return words ? `#${path}?q=${encodeURIComponent(words)}` : `#${path}`;
}

/** A graph's benchmark: its address without parameters. */
function benchmarkOf(graph) {
  return graph.key.endsWith(")") ? graph.key.slice(0, graph.key.indexOf("(")) : graph.key;
}

/** Says something to those who listen and, where it is news for all, to those who look. */
function say(text, isForAll = false) {
  if (!isForAll) {
    document.querySelector(".said").textContent = text;
    return;
  }
  const toast = document.querySelector(".toast");
  toast.textContent = text;
  toast.hidden = false;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => (toast.hidden = true), 6000);
}

/** The trends in a machine's table, each once it is seen, all of one scale. */
function drawSmallGraphs(section, machine) {
  if (section.seeing) return;
  const reach = reachOf(machine.graphs);
  const drawn = (row) => smallGraph(machine.graphs[row.dataset.graph], machine.commits.length, reach);
  section.seeing = new IntersectionObserver((changes) => {
    for (const { isIntersecting, target } of changes) {
      if (!isIntersecting) continue;
      section.seeing.unobserve(target);
      target.querySelector(".trend").append(drawn(target));
    }
  }, { rootMargin: "2000px" });
  for (const row of section.querySelectorAll(".latest tr[data-graph]")) {
    if (machine.graphs[row.dataset.graph].lines.length) section.seeing.observe(row);
  }
  section.querySelector(".latest .reach").textContent = `(height: ${digits(100 * reach)} %)`;
}

/** The least and the largest median of a graph. */
function endsOf(graph) {
  const values = graph.lines.flatMap((line) => line.measured.map((place) => line.values[place]));
  return [values.reduce((one, other) => Math.min(one, other), Infinity), values.reduce((one, other) => Math.max(one, other), -Infinity)];
}

/** How high small graphs are, as a share of what they show: nine of ten fit, others are cut off. */
function reachOf(graphs) {
  const spans = graphs.map(endsOf).filter(([low, high]) => low <= high)
    .map(([low, high]) => (high - low) / (Math.abs(high + low) / 2 || 1)).sort((one, other) => one - other);
  // Noise of a per cent shall not look like a mountain range.
  return [0.05, 0.1, 0.2, 0.5, 1].find((share) => share >= spans[Math.floor(0.9 * (spans.length - 1))]) ?? 2;
}

function smallGraph(graph, length, reach) {
  const made = (tag, attributes) => {
    const one = document.createElementNS("http://www.w3.org/2000/svg", tag);
    Object.entries(attributes).forEach(([name, value]) => one.setAttribute(name, value));
    return one;
  };
  const [width, height] = [160, 27];
  const [low, high] = endsOf(graph);
  const middle = (low + high) / 2;
  const x = (place) => (length < 2 ? width - 3 : 3 + (place / (length - 1)) * (width - 6));
  const y = (value) => {
    const share = (value - middle) / ((Math.abs(middle) || 1) * reach);
    return height / 2 - Math.max(-0.5, Math.min(0.5, share)) * (height - 6);
  };
  const svg = made("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": graph.title });
  for (const change of graph.changes) {
    const at = x(change.at - 0.5);
    svg.append(made("path", {
      d: `M${at} 1V${height - 1}`, stroke: `var(${markColour(change)})`, "stroke-width": 1.5,
      "stroke-dasharray": MARKS[change.state].dash.length ? "3 2" : "none",
    }));
  }
  for (const line of graph.lines) {
    const colour = `var(--line-${(line.environment % 4) + 1})`;
    const along = (values) => line.measured.map((place) => `${x(place).toFixed(1)},${y(values[place]).toFixed(1)}`);
    const noise = [...along(line.low), ...along(line.high).reverse()];
    svg.append(
      made("polygon", { points: noise.join(" "), fill: colour, opacity: 0.22 }),
      made("polyline", { points: along(line.values).join(" "), fill: "none", stroke: colour, "stroke-width": 1.4 }));
    const last = line.measured.at(-1);
    if (last !== undefined) svg.append(made("circle", { cx: x(last), cy: y(line.values[last]), r: 2.4, fill: colour }));
  }
  return svg;
}

/** A graph with its heading, its legend and the table behind it. */
function figureOf(plot) {
  const { machine, graph, data } = plot;
  const details = element("details", {
    ontoggle: () => details.open && details.children.length < 2 && details.append(
      element("div", { class: "scroll", tabindex: 0 }, tableOf(plot, rowsOf(data, machine, graph)))),
  }, element("summary", {}, "Table"));
  const csv = element("button", { type: "button", class: "csv", onclick: () => download(plot) }, "Download as CSV");
  return element("section", { class: "graph", "aria-label": graph.title },
    element("h3", {}, `${graph.group}: ${graph.title} `, element("small", {},
      `${plot.unit ? `in ${plot.unit}, ` : ""}${graph.better} is better`)),
    plot.host, plot.marks.legend(), csv, details);
}

function tableOf(plot, rows) {
  const figure = (value) => (value === null ? "" : digits(value * plot.factor));
  const { url } = plot.data;
  const cells = (row) => [
    url && row.subject ? element("a", { href: url + row.commit }, shortOf(row.commit)) : shortOf(row.commit),
    row.subject, row.author, row.date, row.value === null ? "failed" : figure(row.value),
    `${figure(row.first_quartile)} to ${figure(row.third_quartile)}`, String(row.processes), row.session, row.environment,
  ];
  const titles = ["commit", "subject", "author", "date", plot.unit || "value", plot.graph.band ?? "middle half", "processes", "session", "with"];
  const isText = (place) => ![4, 5, 6].includes(place);
  const line = (tag, texts) => element("tr", {}, ...texts.map(
    (text, place) => element(tag, { class: isText(place) ? "text" : "" }, text)));
  return element("table", {}, element("thead", {}, line("th", titles)),
    // The newest first, as people look for those.
    element("tbody", {}, ...rows.reverse().map((row) => line("td", cells(row)))));
}

function download(plot) {
  const { machine, graph, data } = plot;
  const text = csvOf(rowsOf(data, machine, graph));
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  const name = `${machine.name}-${graph.key}`.replace(/[^\p{L}\p{N}.-]+/gu, "_");
  element("a", { href: address, download: `${name}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** The graph of the page of one bisection. */
function showBisection(data) {
  const panel = document.querySelector(".panel");
  for (const machine of data.machines) {
    const axis = new Axis(data, machine);
    axis.plots = [new Plot(data, machine, machine.graphs[0], axis, say)];
    panel.append(figureOf(axis.plots[0]));
    panel.hidden = false;
  }
}

let page;
unpack(document.getElementById("figures").textContent).then(
  (data) => (document.querySelector("section.machine") ? (page = new Page(data)) : showBisection(data)),
  (error) => say(`The graphs cannot be drawn by this browser: ${error}`, true),
);
