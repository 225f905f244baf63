"use strict";
// One graph: what of its chart is hovered, copied and typed.

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

/** A graph with what it says; it is drawn while it is seen. `axis` is shared by all of a machine. */
class Plot {
  constructor(data, machine, graph, axis, say) {
    Object.assign(this, { data, machine, graph, axis, say });
    [this.unit, this.factor] = unitOf(graph);
    this.marks = new Marks(this);
    this.place = null;
    this.line = graph.lines.at(-1);
    this.host = element("div", {
      class: "plot", tabindex: 0, role: "application", "aria-roledescription": "graph",
      "aria-label": `${graph.group}: ${graph.title}. Left and right arrows walk the commits, Enter copies a comparison, Shift and Enter choose the commit that it begins at, plus and minus zoom.`,
      onkeydown: (event) => this.onKey(event),
      onblur: () => this.leave(),
    });
    this.cross = element("div", { class: "cross", hidden: true });
    this.dot = element("div", { class: "dot", hidden: true });
    this.tip = element("div", { class: "tip", hidden: true });
    this.chart = new Chart(this.host, axis, graph, this.factor, (ctx) => this.marks.draw(ctx));
    const { over } = this.chart;
    over.append(this.cross, this.dot, this.tip);
    over.addEventListener("mousedown", (event) => (this.pressedAt = event.clientX));
    over.addEventListener("mousemove", (event) => this.onPointer(event));
    over.addEventListener("click", (event) => this.onClick(event));
    over.addEventListener("mouseleave", () => this.leave());
    this.resizing = new ResizeObserver(() => this.redraw());
    this.resizing.observe(this.host);
    this.seeing = new IntersectionObserver((changes) => {
      if (!changes.at(-1).isIntersecting) this.chart.clear();
      else if (!this.chart.isDrawn) this.chart.draw();
    }, { rootMargin: "300px" });
    this.seeing.observe(this.host);
  }

  destroy() {
    this.resizing.disconnect();
    this.seeing.disconnect();
  }

  /** Draws anew where it is seen, and what is shown of a figure with it. */
  redraw() {
    if (!this.chart.isDrawn) return;
    this.chart.draw();
    if (this.place !== null) this.show(this.line, this.place);
  }

  /** Zooms around a place; `factor` below 1 shows more detail, 0 all. */
  zoomBy(factor) {
    const { positions, range, whole } = this.axis;
    const half = ((range[1] - range[0]) / 2) * factor;
    const middle = this.place === null ? (range[0] + range[1]) / 2 : positions[this.place];
    if (factor === 0 || 2 * half >= whole[1] - whole[0]) this.axis.zoomTo(...whole);
    else this.axis.zoomTo(middle - half, middle + half);
  }

  /** Moves the range that is zoomed to so far that a place is in it. */
  reveal(place) {
    const [low, high] = this.axis.range;
    const position = this.axis.positions[place];
    const by = position < low ? position - low : Math.max(0, position - high);
    if (by) this.axis.zoomTo(low + by, high + by);
  }

  onPointer(event) {
    const { chart } = this;
    const box = chart.over.getBoundingClientRect();
    const [left, top] = [event.clientX - box.left, event.clientY - box.top];
    let nearest = null;
    for (const line of this.graph.lines) {
      for (const place of line.measured) {
        const x = Math.abs(chart.across[place] - left);
        const y = Math.abs(chart.yOf(line.values[place]) - top);
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
    if (event.pointerType !== "touch" || isAgain) this.take(event.shiftKey);
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
      this.take(event.shiftKey);
    } else if (event.key in zooms) {
      this.zoomBy(zooms[event.key]);
    } else if (event.key === "Escape") {
      this.leave();
      this.axis.choose(null);
    } else {
      return;
    }
    event.preventDefault();
  }

  /** Shows what is known of one figure, here with its texts and in the other graphs as a line. */
  show(line, place) {
    if (place === undefined) return;
    [this.line, this.place] = [line, place];
    if (!this.chart.isDrawn) this.chart.draw();
    this.tip.replaceChildren(...this.texts().map((text, number) =>
      element("p", number > 1 ? { class: "quiet" } : {}, number ? text : element("b", {}, text))),
      element("small", {}, this.hint()));
    this.tip.hidden = false;
    const [x, y] = this.mark(place, line);
    const { offsetWidth: tipWidth, offsetHeight: tipHeight } = this.tip;
    const width = this.chart.width;
    this.tip.style.left = `${Math.max(-56, Math.min(x - tipWidth / 2, width + 30 - tipWidth))}px`;
    // Where there is little room it would cover the line that it is about.
    const beside = y > 110 ? y - tipHeight - 14 : y + 14;
    this.tip.style.top = `${width < 420 ? HEIGHT - 30 : beside}px`;
    for (const other of this.axis.plots) {
      if (other !== this && other.chart.isDrawn) other.mark(place, other.graph.lines.at(-1));
    }
  }

  /** Puts the cross and the dot at a place; returns where that is. */
  mark(place, line) {
    const x = this.chart.across[place];
    const value = line.values[place];
    const y = value === null ? 0 : this.chart.yOf(value);
    const isInside = x >= 0 && x <= this.chart.width;
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
    const commit = this.commit(place);
    const shown = (value) => digits(value * factor);
    const processes = line.processes[place];
    const session = line.sessions[place];
    const host = [machine.name, machine.environments[line.environment]].filter(Boolean).join(", ");
    return [
      `${shown(line.values[place])} ${unit}`.trim(),
      `${commit.short} ${commit.subject}`.trim(),
      processes > 1
        ? `${graph.band ?? "middle half"} of ${processes} processes: ${shown(line.low[place])} to ${shown(line.high[place])} ${unit}`.trim()
        : "one process",
      [commit.author, commit.date === null ? "" : moment(commit.date)].filter(Boolean).join(", "),
      session ? `session of ${moment(machine.sessions[session - 1], true)}, ${host}` : host,
      line.began && place === line.measured[0] ? `A new series begins: ${line.began}` : "",
      ...graph.changes.filter((change) => change.at === place).map((change) => `Change: ${change.text}`),
      ...graph.verdicts.filter((one) => one.at === place).map((one) => one.text),
    ].filter(Boolean);
  }

  /** The commit at a place of the axis. */
  commit(place) {
    return commitAt(this.data, this.machine.commits[place]);
  }

  /** Where a comparison of the figure shown begins: at the commit chosen, else the one before. */
  get base() {
    const { chosen } = this.axis;
    return chosen !== null && chosen !== this.place ? chosen : this.line.measured[this.line.measured.indexOf(this.place) - 1];
  }

  /** What a click does here, in words. */
  hint() {
    const { chosen } = this.axis;
    if (chosen === this.place) return "Chosen: click another commit to copy the compare of both.";
    if (chosen !== null) return `Click: copy the compare with ${this.commit(chosen).short}.`;
    const copies = this.base === undefined ? "" : "Click: copy the compare with the commit before. ";
    return `${copies}Shift+click: choose one of two.`;
  }

  /** Chooses the commit that is shown, or copies the command that compares it. */
  take(isChosen) {
    const ends = [this.base, this.place];
    if (isChosen) {
      this.axis.choose(this.place);
      this.say(`${this.commit(this.place).short} is chosen. ${this.hint()}`);
    } else if (ends[0] === undefined) {
      this.say("Nothing was measured before this, so there is no step to ask about.", true);
    } else {
      const [base, head] = ends.sort((one, other) => one - other).map((place) => this.commit(place));
      copyText(compareCommand(base, head, this.graph.metric), this.say);
      this.axis.choose(null);
    }
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
