"use strict";
// The figures that the page carries (asv_bench/pages/site.py), and texts made of them.

/**
 * @typedef {{environment: number, began: string, values: (number|null)[], low: (number|null)[],
 *   high: (number|null)[], processes: (number|null)[], sessions: (number|null)[],
 *   measured: number[], failed: number[]}} Line
 *   One environment's figures, a value for each commit of the machine; null where there is none.
 *   `measured` and `failed` are places, `began` is what changed where it is not the first line.
 * @typedef {{key: string, group: string, title: string, unit: string, better: string,
 *   metric: string, lines: Line[], changes: object[], verdicts: object[]}} Graph
 * @typedef {{name: string, commits: number[], sessions: number[], environments: string[],
 *   graphs: Graph[]}} Machine
 */

/** Unpacks the payload: JSON, deflated, in base 64. */
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const content = JSON.parse(await new Response(stream).text());
  for (const line of content.machines.flatMap((one) => one.graphs).flatMap((graph) => graph.lines)) {
    const places = [...line.sessions.keys()].filter((place) => line.sessions[place] !== null);
    line.measured = places.filter((place) => line.values[place] !== null);
    line.failed = places.filter((place) => line.values[place] === null);
  }
  return content;
}

/** The unit that reads best for a graph, and how many of it one of the stored unit is. */
function unitOf(graph) {
  const largest = Math.max(0, ...graph.lines.flatMap((line) => line.high));
  if (graph.unit === "bytes") return ["MiB", 2 ** -20];
  if (graph.unit !== "seconds") return [graph.unit, 1];
  for (const [unit, factor] of [["s", 1], ["ms", 1e3], ["µs", 1e6]]) {
    if (largest * factor >= 1) return [unit, factor];
  }
  return ["ns", 1e9];
}

/** Four digits of a number, grouped by thousands. */
function digits(value) {
  const rounded = Number(value.toPrecision(4));
  return Math.abs(rounded) >= 1e-4 || rounded === 0
    ? rounded.toLocaleString("en", { maximumFractionDigits: 8 })
    : rounded.toExponential();
}

/** A commit by its place in the table of commits. */
function commitAt(data, place) {
  const { hash, subject, author, date } = data.commits;
  return {
    hash: hash[place], short: shortOf(hash[place]), subject: subject[place], author: author[place], date: date[place],
  };
}

/** The first eight digits of a hash; a label, which is none, whole. */
function shortOf(name) {
  return /^([0-9a-f]{40}|[0-9a-f]{64})$/.test(name) ? name.slice(0, 8) : name;
}

/** A moment in UTC, with its minute or the day alone. */
function moment(milliseconds, withTime = false) {
  const text = new Date(milliseconds).toISOString();
  return withTime ? `${text.slice(0, 10)} ${text.slice(11, 16)} UTC` : text.slice(0, 10);
}

/** The command that compares a commit with the one measured before it. */
function compareCommand(base, head, metric) {
  return `kvtrail compare ${quoted(base.short)} ${quoted(head.short)} --metric ${quoted(metric)}`;
}

/** A word as a shell reads it. */
function quoted(word) {
  return /^[\w.+:@%/=-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** Rows of a graph's table: one for each commit and environment, in the order of commits. */
function rowsOf(data, machine, graph) {
  return machine.commits.flatMap((at, place) => graph.lines.filter((line) => line.sessions[place] !== null).map((line) => {
    const commit = commitAt(data, at);
    return {
      machine: machine.name, benchmark: graph.key, commit: commit.hash, subject: commit.subject, author: commit.author,
      date: commit.date === null ? "" : moment(commit.date), value: line.values[place],
      first_quartile: line.low[place], third_quartile: line.high[place], unit: graph.unit, processes: line.processes[place],
      session: line.sessions[place] ? moment(machine.sessions[line.sessions[place] - 1], true) : "",
      environment: machine.environments[line.environment],
    };
  }));
}

/** The same as comma-separated values, figures in the unit in which they are stored. */
function csvOf(rows) {
  const cell = (value) => `"${String(value ?? "").replaceAll('"', '""')}"`;
  const lines = [Object.keys(rows[0]).join(","), ...rows.map((row) => Object.values(row).map(cell).join(","))];
  return [...lines, ""].join("\n");
}
