"use strict";
// What is marked on a graph: changes, verdicts, sessions, hosts and failures; and their legend.

const MARKS = {
  regression: { colour: "--worse", dash: [], text: "confirmed regression" },
  improvement: { colour: "--better", dash: [], text: "confirmed improvement" },
  candidate: { colour: "--open", dash: [5, 4], text: "change, not confirmed" },
  unresolved: { colour: "--open", dash: [5, 4], text: "change, compared and not resolved" },
  not_compared: { colour: "--open", dash: [5, 4], text: "change that could not be compared" },
  refuted: { colour: "--faint", dash: [2, 4], text: "refuted by comparing" },
  acknowledged: { colour: "--muted", dash: [], text: "acknowledged" },
};
const VERDICTS = { slower: "--worse", faster: "--better" };

/** The colour of a change: one for the better that is not confirmed is no warning. */
function markColour(change) {
  const colour = MARKS[change.state].colour;
  return colour === "--open" && !change.worse ? "--better" : colour;
}

/** The marks of one `Plot`. */
class Marks {
  constructor(owner) {
    this.owner = owner;
  }

  /** Where the line between a commit and the one before it is, in the plot's units. */
  between(place) {
    const { positions } = this.owner.axis;
    return place === 0 ? positions[0] : (positions[place - 1] + positions[place]) / 2;
  }

  draw(ctx) {
    const { axis, chart, graph } = this.owner;
    const { width, height } = chart;
    const at = (position) => Math.round(chart.xOf(position)) + 0.5;
    const isInside = (x) => x >= 0 && x <= width + 1;
    const upright = (x, colour, dash, thickness) => {
      ctx.strokeStyle = css(colour);
      ctx.lineWidth = thickness;
      ctx.setLineDash(dash);
      ctx.beginPath();
      ctx.moveTo(x, 0);
      ctx.lineTo(x, height);
      ctx.stroke();
      ctx.setLineDash([]);
    };
    const sign = (x, y, text, colour, size = 12) => {
      ctx.fillStyle = css(colour);
      ctx.font = `${size}px system-ui, sans-serif`;
      ctx.fillText(text, x, y);
    };
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    if (graph.odds) this.drawSearch(ctx, at, sign);
    for (const place of this.sessionPlaces()) {
      const x = at(this.between(place));
      if (isInside(x)) upright(x, "--faint", [1, 5], 1);
    }
    for (const [place, name] of this.hostPlaces()) {
      const x = at(this.between(place));
      if (!isInside(x)) continue;
      upright(x, "--muted", [8, 3, 2, 3], 1);
      ctx.textAlign = x > width / 2 ? "right" : "left";
      sign(x + (ctx.textAlign === "left" ? 4 : -4), 9, name.slice(0, 40), "--muted", 11);
      ctx.textAlign = "center";
    }
    if (axis.chosen !== null) {
      const x = at(axis.positions[axis.chosen]);
      if (isInside(x)) upright(x, "--ink", [], 2);
    }
    for (const change of graph.changes) {
      const x = at(this.between(change.at));
      if (!isInside(x)) continue;
      upright(x, markColour(change), MARKS[change.state].dash, 1.4);
      sign(x, -16, change.state === "refuted" ? "○" : change.rises ? "▲" : "▼", markColour(change));
    }
    for (const verdict of graph.verdicts) {
      const x = at(axis.positions[verdict.at]);
      if (isInside(x)) sign(x, -5, "◆", VERDICTS[verdict.verdict] ?? "--muted", 11);
    }
    for (const place of graph.lines.flatMap((line) => line.failed)) {
      const x = at(axis.positions[place]);
      if (isInside(x)) sign(x, height - 8, "✕", "--worse");
    }
  }

  /** How probable a step of each commit of a bisection is, and its lives. */
  drawSearch(ctx, at, sign) {
    const { chart, graph } = this.owner;
    const { width, height } = chart;
    const isSeen = (place) => at(place) >= 0 && at(place) <= width;
    graph.odds.forEach((odds, place) => {
      const half = (at(place + 1) - at(place)) * 0.4;
      if (!isSeen(place)) return;
      ctx.fillStyle = css("--open");
      ctx.globalAlpha = 0.25;
      ctx.fillRect(at(place) - half, height * (1 - odds), 2 * half, height * odds);
      ctx.globalAlpha = 1;
      if (odds >= 0.05) sign(at(place), height * (1 - odds) + 10, `${Math.round(100 * odds)} %`, "--open");
    });
    ctx.fillStyle = css("--muted");
    for (const [place, value] of graph.lives.filter(([one]) => isSeen(one))) {
      ctx.fillRect(at(place) - 2, chart.yOf(value) - 2, 4, 4);
    }
  }

  /** Places before which another session of measuring began. */
  sessionPlaces() {
    return this.owner.graph.lines.flatMap((line) =>
      line.measured.filter((place, number) =>
        number > 0 && line.sessions[place] !== line.sessions[line.measured[number - 1]]));
  }

  /** Where the line of another client, driver or other versions begins; and what is other. */
  hostPlaces() {
    return this.owner.graph.lines.filter((line) => line.began).map((line) => [line.measured[0], line.began]);
  }

  legend() {
    const { graph } = this.owner;
    const parts = graph.changes.map((change) => [
      change.state === "refuted" ? "○" : change.rises ? "▲" : "▼", markColour(change), MARKS[change.state].text,
    ]);
    parts.push(...graph.verdicts.map((one) => ["◆", VERDICTS[one.verdict] ?? "--muted", `compared: ${one.verdict}`]));
    if (graph.lines.some((line) => line.failed.length)) parts.push(["✕", "--worse", "failed"]);
    if (this.sessionPlaces().length) parts.push(["┊", "--faint", "another session of measuring"]);
    if (graph.lines.length > 1) {
      parts.push(...graph.lines.map((line) => [
        "●", `--line-${(line.environment % 4) + 1}`, this.owner.machine.environments[line.environment],
      ]));
    }
    if (graph.odds) parts.push(["▪", "--muted", "a process"], ["▮", "--open", "probability of a step here"]);
    parts.push(["▒", "--accent", `the ${graph.band ?? "middle half of the processes"}`]);
    const distinct = new Map(parts.map((part) => [part.join(), part]));
    return element("p", { class: "legend", "aria-hidden": "true" }, ...[...distinct.values()].map(
      ([sign, colour, text]) => element("span", {}, element("i", { style: `color: var(${colour})` }, sign), text)));
  }
}
