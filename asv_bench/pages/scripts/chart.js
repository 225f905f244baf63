"use strict";
// Lines, bands and axes of one graph on a canvas, and the range of commits that all graphs show.

const HEIGHT = 250;
const EDGE = { top: 26, right: 36, bottom: 30, left: 62 };
const TEXT = "12px system-ui, sans-serif";
const CODE = "12px ui-monospace, Menlo, Consolas, monospace";
const HOURS = [1, 3, 6, 12, 24, 48, 120, 240, 720, 2160, 4320, 8760, 17520, 43800];

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const lineColour = (number) => css(`--line-${(number % 4) + 1}`);

/** What all graphs of a machine share: where commits stand, which are seen, and which is chosen. */
class Axis {
  constructor(data, machine) {
    this.names = machine.commits.map((at) => shortOf(data.commits.hash[at]));
    this.dates = machine.commits.map((at) => data.commits.date[at]); // in milliseconds, or null
    this.plots = [];
    this.layOut(false);
  }

  /** Lays commits out evenly, or by their dates. */
  layOut(byDate) {
    let before = -Infinity;
    this.byDate = byDate;
    // Commits of one moment, or of a clock that went wrong, still stand in their order.
    this.positions = this.dates.map((date, place) => (before = byDate ? Math.max(before + 1, date / 1000) : place));
    [this.zoom, this.chosen] = [null, null];
  }

  get whole() {
    const [first, last] = [this.positions[0], this.positions.at(-1)];
    const margin = this.byDate ? Math.max((last - first) * 0.03, 3600) : 0.6;
    return [first - margin, last + margin];
  }

  get range() {
    return this.zoom ?? this.whole;
  }

  /** Shows a range on all graphs, or everything, where it is as wide. */
  zoomTo(low, high) {
    const [first, last] = this.whole;
    const least = this.byDate ? 60 : 1;
    if (high - low < least) [low, high] = [(low + high - least) / 2, (low + high + least) / 2];
    this.zoom = low <= first && high >= last ? null : [low, high];
    this.redraw();
  }

  /** Chooses a commit as one end of a comparison; null is none. */
  choose(place) {
    this.chosen = place;
    this.redraw();
  }

  redraw() {
    for (const plot of this.plots) plot.redraw();
  }
}

/** A canvas in a host. Places on it are pixels from the corner of `over`, which lies on the lines. */
class Chart {
  /** The lines of a graph are multiplied by `factor`; `mark` draws what lies on them. */
  constructor(host, axis, { lines, lives = [] }, factor, mark) {
    Object.assign(this, { axis, lines, lives, factor, mark, isDrawn: false });
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.over = element("div", { class: "over" });
    Object.assign(this.over.style, { left: `${EDGE.left}px`, top: `${EDGE.top}px` });
    host.append(this.canvas, this.over);
    this.height = HEIGHT - EDGE.top - EDGE.bottom;
    this.over.style.height = `${this.height}px`;
    this.over.addEventListener("mousedown", (event) => event.button === 0 && this.drag(event));
    this.over.addEventListener("dblclick", () => axis.zoomTo(...axis.whole));
  }

  xOf(position) {
    const [low, high] = this.axis.range;
    return ((position - low) / (high - low)) * this.width;
  }

  positionAt(x) {
    const [low, high] = this.axis.range;
    return low + (x / this.width) * (high - low);
  }

  yOf(value) {
    const [low, high] = this.bounds;
    return (1 - (value * this.factor - low) / (high - low)) * this.height;
  }

  /** Zooms to what is dragged over. */
  drag(pressed) {
    const left = this.over.getBoundingClientRect().left;
    const inside = (event) => Math.max(0, Math.min(this.width, event.clientX - left));
    const [from, shade, stop] = [inside(pressed), element("div", { class: "shade" }), new AbortController()];
    pressed.preventDefault();
    this.over.closest("[tabindex]").focus({ preventScroll: true, focusVisible: false });
    this.over.append(shade);
    addEventListener("mousemove", (event) => {
      const to = inside(event);
      shade.style.left = `${Math.min(from, to)}px`;
      shade.style.width = `${Math.abs(to - from)}px`;
    }, stop);
    addEventListener("mouseup", (event) => {
      const ends = [from, inside(event)].sort((one, other) => one - other);
      stop.abort();
      shade.remove();
      if (ends[1] - ends[0] > 4) this.axis.zoomTo(...ends.map((x) => this.positionAt(x)));
    }, stop);
  }

  /** Frees what the picture takes. */
  clear() {
    this.isDrawn = false;
    this.canvas.width = 0;
  }

  draw() {
    const { canvas, axis } = this;
    const wide = canvas.parentElement.clientWidth - 8;
    const ctx = canvas.getContext("2d");
    this.isDrawn = true;
    this.width = Math.max(1, wide - EDGE.left - EDGE.right);
    this.over.style.width = `${this.width}px`;
    Object.assign(canvas.style, { width: `${wide}px`, height: `${HEIGHT}px` });
    [canvas.width, canvas.height] = [wide * devicePixelRatio, HEIGHT * devicePixelRatio];
    ctx.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    ctx.translate(EDGE.left, EDGE.top);
    this.bounds = this.heights();
    this.across = axis.positions.map((position) => this.xOf(position));
    this.drawGrid(ctx);
    ctx.save();
    ctx.beginPath();
    ctx.rect(0, -4, this.width, this.height + 8);
    ctx.clip();
    for (const line of this.lines) this.drawLine(ctx, line);
    ctx.restore();
    this.mark(ctx);
  }

  /** The least and the largest value to show: of what is seen, else of all, with some room. */
  heights() {
    const [low, high] = this.axis.range;
    const isSeen = (place) => this.axis.positions[place] >= low && this.axis.positions[place] <= high;
    const reach = (isMeant) => {
      const values = this.lives.filter(([place]) => isMeant(place)).map(([, value]) => value * this.factor);
      let [least, most] = [Math.min(...values), Math.max(...values)];
      for (const line of this.lines) {
        for (const place of line.measured.filter(isMeant)) {
          least = Math.min(least, line.low[place] * this.factor);
          most = Math.max(most, line.high[place] * this.factor);
        }
      }
      return least <= most ? [least, most] : null;
    };
    const [least, most] = reach(isSeen) ?? reach(() => true) ?? [0, 1];
    const room = (most - least) * 0.1 || Math.abs(most) * 0.1 || 1;
    return [least >= 0 ? Math.max(0, least - room) : least - room, most + room];
  }

  drawGrid(ctx) {
    const [low, high] = this.bounds;
    const step = roundStep((high - low) / 6);
    const fraction = (String(Number(step.toPrecision(9))).split(".")[1] ?? "").length;
    const exact = { minimumFractionDigits: fraction, maximumFractionDigits: fraction };
    ctx.lineWidth = 1;
    ctx.strokeStyle = css("--line");
    ctx.fillStyle = css("--muted");
    ctx.beginPath();
    [ctx.font, ctx.textAlign, ctx.textBaseline] = [TEXT, "right", "middle"];
    for (let tick = Math.ceil(low / step); tick * step <= high; tick += 1) {
      const y = Math.round(this.yOf((tick * step) / this.factor)) + 0.5;
      ctx.moveTo(0, y);
      ctx.lineTo(this.width, y);
      ctx.fillText((tick * step + 0).toLocaleString("en", exact), -8, y); // never -0
    }
    [ctx.font, ctx.textAlign, ctx.textBaseline] = [this.axis.byDate ? TEXT : CODE, "center", "top"];
    for (const [position, text] of this.axis.byDate ? this.dateTicks() : this.commitTicks()) {
      const x = Math.round(this.xOf(position)) + 0.5;
      ctx.moveTo(x, 0);
      ctx.lineTo(x, this.height);
      ctx.fillText(text, x, this.height + 9);
    }
    ctx.stroke();
  }

  /** Ticks at commits, as many as have room; from the newest on, which is what people look for. */
  commitTicks() {
    const [low, high] = this.axis.range;
    const names = this.axis.names.map((name) => name.slice(0, 12));
    const room = 9 + 8 * Math.max(...names.map((name) => name.length));
    const [from, to] = [Math.max(0, Math.ceil(low)), Math.min(names.length - 1, Math.floor(high))];
    const step = Math.max(1, Math.ceil((room * (high - low)) / this.width));
    const ticks = [];
    for (let place = to; place >= from; place -= step) ticks.push([place, names[place]]);
    return ticks;
  }

  dateTicks() {
    const [low, high] = this.axis.range;
    const room = (150 * (high - low)) / this.width;
    const step = 3600 * (HOURS.find((hours) => hours * 3600 >= room) ?? HOURS.at(-1));
    const ticks = [];
    for (let at = Math.ceil(low / step) * step; at <= high; at += step) {
      ticks.push([at, moment(at * 1000, step < 86400)]);
    }
    return ticks;
  }

  drawLine(ctx, line) {
    const { measured } = line;
    const along = (values) => measured.map((place) => [this.across[place], this.yOf(values[place])]);
    const path = (points) => {
      ctx.beginPath();
      points.forEach(([x, y], number) => (number ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
    };
    const points = along(line.values);
    ctx.fillStyle = ctx.strokeStyle = lineColour(line.environment);
    ctx.globalAlpha = 0.18;
    path([...along(line.low), ...along(line.high).reverse()]);
    ctx.fill();
    ctx.globalAlpha = 1;
    ctx.lineWidth = 1.6;
    path(points);
    ctx.stroke();
    const radius = measured.length > 120 ? 1.5 : 2.5;
    ctx.beginPath();
    for (const [x, y] of points) {
      ctx.moveTo(x + radius, y);
      ctx.arc(x, y, radius, 0, 2 * Math.PI);
    }
    ctx.fill();
  }
}

/** The least of 1, 2, 2.5 and 5 times a power of ten that is at least so much. */
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 2.5, 5, 10].find((one) => one * power >= least * (1 - 1e-9));
}
