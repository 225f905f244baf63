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
  for (const machine of content.machines) {
    for (const graph of machine.graphs) {
      graph.lines = graph.lines.map((line) => unpackLine(line, machine.commits.length));
    }
  }
  return content;
}

/** One line with a value for each place of the axis. @returns {Line} */
function unpackLine(packed, length) {
  const spread = (column) => {
    const wide = new Array(length).fill(null);
    packed.places.forEach((place, number) => (wide[place] = column[number]));
    return wide;
  };
  const [values, low, high] = packed.levels.map(spread);
  return {
    environment: packed.environment, began: packed.began, values, low, high,
    processes: spread(packed.processes), sessions: spread(packed.sessions),
    measured: packed.places.filter((place) => values[place] !== null),
    failed: packed.places.filter((place) => values[place] === null),
  };
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
  const whole = hash[place];
  return {
    hash: whole,
    short: isHash(whole) ? whole.slice(0, 8) : whole,
    subject: subject[place],
    author: author[place],
    date: date[place],
    url: data.url && subject[place] ? data.url + whole : "",
  };
}

function isHash(name) {
  return /^([0-9a-f]{40}|[0-9a-f]{64})$/.test(name);
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
  const rows = [];
  machine.commits.forEach((at, place) => {
    for (const line of graph.lines) {
      if (line.sessions[place] === null) continue;
      const session = line.sessions[place];
      rows.push({
        commit: commitAt(data, at),
        value: line.values[place],
        low: line.low[place],
        high: line.high[place],
        processes: line.processes[place],
        session: session ? machine.sessions[session - 1] : null,
        environment: machine.environments[line.environment],
      });
    }
  });
  return rows;
}

/** The same as comma-separated values, figures in the unit in which they are stored. */
function csvOf(machine, graph, rows) {
  const cell = (value) => `"${String(value ?? "").replaceAll('"', '""')}"`;
  const header = [
    "machine", "benchmark", "commit", "subject", "author", "date", "value", "first_quartile",
    "third_quartile", "unit", "processes", "session", "environment",
  ];
  const lines = rows.map((row) => [
    machine.name, graph.key, row.commit.hash, row.commit.subject, row.commit.author,
    row.commit.date === null ? "" : moment(row.commit.date), row.value, row.low, row.high,
    graph.unit, row.processes, row.session ? moment(row.session, true) : "", row.environment,
  ].map(cell).join(","));
  return [header.join(","), ...lines, ""].join("\n");
}
