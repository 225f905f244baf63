"use strict";
// One graph: uPlot draws lines, bands and axes; here is what is marked, hovered, copied and typed.

const HEIGHT = 250;
const DATE_TICKS = (_, splits) => splits.map((seconds) => moment(seconds * 1000));

/** An element with attributes and children; texts are texts, never HTML. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== ""));
  return made;
}

/**
 * A drawn graph. `axis` is what all graphs of a machine share: positions of commits, whether they
 * are dates, the range that is zoomed to, and the plots themselves.
 */
class Plot {
  constructor(data, machine, graph, axis, say) {
    Object.assign(this, { data, machine, graph, axis, say });
    [this.unit, this.factor] = unitOf(graph);
    this.marks = new Marks(this);
    this.place = null;
    this.line = graph.lines.at(-1);
    this.host = element("div", {
      class: "plot", tabindex: 0, role: "application", "aria-roledescription": "graph",
      "aria-label": `${graph.group}: ${graph.title}. Left and right arrows walk the commits, Enter copies a comparison, plus and minus zoom.`,
      onkeydown: (event) => this.onKey(event),
      onblur: () => this.leave(),
    });
    this.cross = element("div", { class: "cross", hidden: true });
    this.dot = element("div", { class: "dot", hidden: true });
    this.tip = element("div", { class: "tip", hidden: true });
  }

  /** Draws into the host, which must be on the page. */
  draw() {
    const { axis, graph } = this;
    const scale = (values) => values.map((value) => (value === null ? null : value * this.factor));
    const columns = graph.lines.flatMap((line) => [line.values, line.low, line.high].map(scale));
    const series = graph.lines.flatMap((line) => {
      const stroke = () => lineColour(line.environment);
      const points = { show: true, size: line.measured.length > 120 ? 3 : 5, fill: stroke };
      const edge = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
      return [{ stroke, width: 1.6, points, spanGaps: true }, edge, edge];
    });
    const bands = graph.lines.map((line, number) => ({
      series: [3 * number + 3, 3 * number + 2],
      fill: () => `color-mix(in srgb, ${lineColour(line.environment)} 18%, transparent)`,
    }));
    const ticks = {
      stroke: () => css("--muted"), font: "12px system-ui, sans-serif",
      grid: { stroke: () => css("--line"), width: 1 }, ticks: { show: false }, size: 30, gap: 8,
    };
    const first = axis.positions[0];
    const last = axis.positions.at(-1);
    const margin = axis.byDate ? Math.max((last - first) * 0.03, 3600) : 0.6;
    const wholeOr = (_, min, max) => (min <= first && max >= last ? [first - margin, last + margin] : [min, max]);
    this.plot = new uPlot({
      width: this.host.clientWidth - 8,
      height: HEIGHT,
      legend: { show: false },
      cursor: { points: { show: false }, x: false, y: false, drag: { x: true, y: false } },
      scales: { x: { time: axis.byDate, range: wholeOr } },
      series: [{}, ...series],
      bands,
      axes: [
        axis.byDate ? { ...ticks, space: 96, values: DATE_TICKS } : { ...ticks, ...this.commitTicks() },
        {
          ...ticks, size: 62, gap: 4,
          values: (_, splits, __, ___, step) => {
            const fraction = (String(Number(step.toPrecision(9))).split(".")[1] ?? "").length;
            const exact = { minimumFractionDigits: fraction, maximumFractionDigits: fraction };
            return splits.map((value) => value.toLocaleString("en", exact));
          },
        },
      ],
      hooks: {
        draw: [() => this.marks.draw()],
        setScale: [(_, key) => key === "x" && this.onZoom()],
        setCursor: [(plot) => this.onPointer(plot)],
      },
      padding: [26, 36, 0, 0],
    }, [axis.positions, ...columns], this.host);
    this.plot.over.append(this.cross, this.dot, this.tip);
    this.plot.over.addEventListener("mousedown", (event) => (this.pressedAt = event.clientX));
    this.plot.over.addEventListener("click", (event) => this.onClick(event));
    this.plot.over.addEventListener("mouseleave", () => this.leave());
    this.resizing = new ResizeObserver(() => {
      this.plot.setSize({ width: this.host.clientWidth - 8, height: HEIGHT });
      if (this.place !== null) this.show(this.line, this.place);
    });
    this.resizing.observe(this.host);
    if (axis.zoom) this.zoomTo(...axis.zoom);
  }

  destroy() {
    this.resizing.disconnect();
    this.plot.destroy();
  }

  /** Ticks at commits, as many as have room. */
  commitTicks() {
    const names = this.machine.commits.map((at) => commitAt(this.data, at).short.slice(0, 12));
    const width = 9 + 8 * Math.max(...names.map((name) => name.length));
    return {
      splits: (plot, _, low, high) => {
        const from = Math.max(0, Math.ceil(low));
        const to = Math.min(names.length - 1, Math.floor(high));
        const step = Math.max(1, Math.ceil((to - from + 1) / Math.max(1, plot.over.clientWidth / width)));
        const places = [];
        // From the newest on, which is what people look for.
        for (let place = to; place >= from; place -= step) places.unshift(place);
        return places;
      },
      values: (_, places) => places.map((place) => names[place]),
      font: "12px ui-monospace, Menlo, Consolas, monospace",
    };
  }

  /** Keeps a range for all graphs of the axis; the whole range is none. */
  onZoom() {
    if (this.axis.isZooming || !this.plot) return;
    const { min, max } = this.plot.scales.x;
    const { positions } = this.axis;
    this.axis.zoom = min <= positions[0] && max >= positions.at(-1) ? null : [min, max];
    this.axis.isZooming = true;
    for (const other of this.axis.plots) if (other !== this) other.zoomTo(min, max);
    this.axis.isZooming = false;
  }

  zoomTo(min, max) {
    this.plot.setScale("x", { min, max });
  }

  /** Zooms around a place; `factor` below 1 shows more detail, 0 all. */
  zoomBy(factor) {
    const { positions } = this.axis;
    const { min, max } = this.plot.scales.x;
    const half = ((max - min) / 2) * factor;
    const middle = this.place === null ? (min + max) / 2 : positions[this.place];
    if (factor === 0 || half >= (positions.at(-1) - positions[0]) * 0.5 + 1) {
      // What uPlot does at a double click.
      this.plot.setData(this.plot.data, true);
    } else {
      this.zoomTo(middle - half, middle + half);
    }
  }

  /** Moves the range that is zoomed to so far that a place is in it. */
  reveal(place) {
    const { min, max } = this.plot.scales.x;
    const position = this.axis.positions[place];
    const by = position < min ? position - min : Math.max(0, position - max);
    if (by) this.zoomTo(min + by, max + by);
  }

  onPointer(plot) {
    const { left, top } = plot.cursor;
    if (left === null || left < 0) return;
    const position = plot.posToVal(left, "x");
    let nearest = null;
    for (const line of this.graph.lines) {
      for (const place of line.measured) {
        const x = Math.abs(this.axis.positions[place] - position);
        const y = Math.abs(plot.valToPos(line.values[place] * this.factor, "y") - top);
        if (nearest === null || x < nearest.x || (x === nearest.x && y < nearest.y)) nearest = { x, y, line, place };
      }
    }
    if (nearest) this.show(nearest.line, nearest.place);
  }

  onClick(event) {
    if (Math.abs(event.clientX - (this.pressedAt ?? event.clientX)) > 4 || this.place === null) return;
    const isAgain = this.tapped === this.place;
    this.tapped = this.place;
    // A finger cannot hover: its first tap shows, the second copies.
    if (event.pointerType !== "touch" || isAgain) this.copy();
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { measured } = this.line;
    const at = measured.indexOf(this.place);
    const moves = {
      ArrowLeft: at < 0 ? measured.length - 1 : Math.max(0, at - 1),
      ArrowRight: at < 0 ? 0 : Math.min(measured.length - 1, at + 1),
      Home: 0, End: measured.length - 1,
    };
    const zooms = { "+": 0.5, "=": 0.5, "-": 2, 0: 0 };
    if (event.key in moves) {
      this.reveal(measured[moves[event.key]]);
      this.show(this.line, measured[moves[event.key]]);
      this.say(this.texts().join(". "));
    } else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      const { lines } = this.graph;
      this.line = lines[(lines.indexOf(this.line) + 1) % lines.length];
      this.show(this.line, this.line.measured.at(-1));
      this.say(this.texts().join(". "));
    } else if (event.key === "Enter" && this.place !== null) {
      this.copy();
    } else if (event.key in zooms) {
      this.zoomBy(zooms[event.key]);
    } else if (event.key === "Escape") {
      this.leave();
    } else {
      return;
    }
    event.preventDefault();
  }

  /** Shows what is known of one figure, here with its texts and in the other graphs as a line. */
  show(line, place) {
    if (place === undefined) return;
    [this.line, this.place] = [line, place];
    this.tip.replaceChildren(...this.texts().map((text, number) =>
      element("p", number > 1 ? { class: "quiet" } : {}, number ? text : element("b", {}, text))));
    this.tip.hidden = false;
    const [x, y] = this.mark(place, line);
    const { offsetWidth: tipWidth, offsetHeight: tipHeight } = this.tip;
    const width = this.plot.over.clientWidth;
    this.tip.style.left = `${Math.max(-56, Math.min(x - tipWidth / 2, width + 30 - tipWidth))}px`;
    // Where there is little room it would cover the line that it is about.
    const beside = y > 110 ? y - tipHeight - 14 : y + 14;
    this.tip.style.top = `${width < 420 ? HEIGHT - 30 : beside}px`;
    for (const other of this.axis.plots) if (other !== this) other.mark(place, other.graph.lines.at(-1));
  }

  /** Puts the cross and the dot at a place; returns where that is. */
  mark(place, line) {
    const x = this.plot.valToPos(this.axis.positions[place], "x");
    const value = line.values[place];
    const y = value === null ? 0 : this.plot.valToPos(value * this.factor, "y");
    const isInside = x >= 0 && x <= this.plot.over.clientWidth;
    this.cross.hidden = !isInside;
    this.dot.hidden = value === null || !isInside;
    this.cross.style.left = this.dot.style.left = `${x}px`;
    this.dot.style.top = `${y}px`;
    return [x, y];
  }

  leave() {
    for (const plot of this.axis.plots) {
      plot.cross.hidden = plot.dot.hidden = plot.tip.hidden = true;
    }
    this.place = this.tapped = null;
  }

  /** What is known of the figure that is shown, a text a line. */
  texts() {
    const { line, place, machine, graph, unit, factor } = this;
    const commit = commitAt(this.data, machine.commits[place]);
    const shown = (value) => digits(value * factor);
    const processes = line.processes[place];
    const session = line.sessions[place];
    const host = [machine.name, machine.environments[line.environment]].filter(Boolean).join(", ");
    return [
      `${shown(line.values[place])} ${unit}`.trim(),
      `${commit.short} ${commit.subject}`.trim(),
      processes > 1
        ? `middle half of ${processes} processes: ${shown(line.low[place])} to ${shown(line.high[place])} ${unit}`.trim()
        : "one process",
      [commit.author, commit.date === null ? "" : moment(commit.date)].filter(Boolean).join(", "),
      session ? `session of ${moment(machine.sessions[session - 1], true)}, ${host}` : host,
      line.began && place === line.measured[0] ? `A new series begins: ${line.began}` : "",
      ...graph.changes.filter((change) => change.at === place).map((change) => `Change: ${change.text}`),
      ...graph.verdicts.filter((one) => one.at === place).map((one) => one.text),
    ].filter(Boolean);
  }

  /** Copies the command that asks about the step from the figure before to the one shown. */
  copy() {
    const before = this.line.measured[this.line.measured.indexOf(this.place) - 1];
    if (before === undefined) {
      this.say("Nothing was measured before this, so there is no step to ask about.", true);
      return;
    }
    const [base, head] = [before, this.place].map((place) => commitAt(this.data, this.machine.commits[place]));
    copyText(compareCommand(base, head, this.graph.metric), this.say);
  }
}

async function copyText(text, say) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Not every browser lets a page that came from a file write there.
    const field = element("textarea", { readonly: true });
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  say(`Copied: ${text}`, true);
}
