/*
 * Three small charts of a stream (rate, lag, latency), and one with the lag of each group.
 *
 * Knows: the meaning of each line. Must never know: how lines are drawn, where values come from.
 */

import { fill, h, setText } from "../shared/dom.js";
import { formatDuration, formatRate, formatShort } from "../shared/format.js";
import { Plot } from "../shared/plot.js";

/** @typedef {import("./measures.js").Measures} Measures */
/** @typedef {import("./measures.js").Series} Series */
/** @typedef {import("../shared/plot.js").Stroke} Stroke */

const GROUPS_MAX = 6;
/** @type {Stroke} */
const MAIN = { colour: "--accent", wash: "--accent-wash" };
/** @type {Stroke} */
const SECOND = { colour: "--warn", width: 1, dash: [4, 3] };

/** @type {{label: string, hint: string, format: (value: number) => string,
 *   lines: {series: keyof Series, name: string, stroke: Stroke}[]}[]} */
const CHARTS = [
  { label: "Rate", hint: "entries published per second", format: formatRate, lines: [{ series: "rate", name: "", stroke: MAIN }] },
  {
    label: "Lag",
    hint: "undelivered entries of the group that lags most",
    format: formatShort,
    lines: [{ series: "lag", name: "", stroke: MAIN }],
  },
  {
    label: "Latency",
    hint: "time from an entry's ID to this page, median and 99th percentile",
    format: formatDuration,
    lines: [{ series: "p50", name: "p50", stroke: MAIN }, { series: "p99", name: "p99", stroke: SECOND }],
  },
];

export class Charts {
  constructor() {
    this.charts = CHARTS.map((chart) => {
      const plot = new Plot(chart.format);
      // Not a live region: a screen reader would read out a value every second.
      const values = chart.lines.map(() => h("span.value-now", {}, "–"));
      const legend = chart.lines.map(({ name }, index) =>
        h("span.legend-line", {}, name && h(`span.swatch.${index === 0 ? "main" : "second"}`, { "aria-hidden": "true" }), name && `${name} `, values[index]));
      const element = h(
        "section.chart",
        { "aria-label": `${chart.label}: ${chart.hint}`, title: chart.hint },
        h("h2.small", {}, chart.label),
        h("span.figure", {}, ...legend),
        plot.element,
      );
      return { ...chart, values, plot, element };
    });
    this.element = h("div.charts", {}, ...this.charts.map(({ element }) => element));
  }

  restyle() {
    for (const { plot } of this.charts) plot.restyle();
  }

  /** @param {Series} series */
  draw(series) {
    for (const { lines, values, format, plot } of this.charts) {
      for (const [index, line] of lines.entries()) {
        const latest = series[line.series].findLast((value) => value !== null) ?? null;
        // Clocks of whole milliseconds cannot measure less than one.
        setText(values[index], latest === null ? "–" : format === formatDuration && latest < 1 ? "<1 ms" : format(latest));
      }
      plot.draw(series.times, lines.map((line) => series[line.series]), lines.map(({ stroke }) => stroke));
    }
  }
}

/** The lag of each group over time; of the worst few if there are many. */
export class LagChart {
  constructor() {
    this.plot = new Plot(formatShort);
    this.legend = h("ul.legend");
    this.element = h(
      "section.chart.lags",
      { hidden: true, "aria-label": "Lag of each group over time" },
      h("h2.small", {}, "Lag over time"),
      this.legend,
      this.plot.element,
    );
    /** @type {string[]} */
    this.names = [];
  }

  restyle() {
    this.plot.restyle();
  }

  /** @param {Measures} measures */
  draw({ series, lagSeries, lagNow }) {
    const worst = (/** @type {(number | null)[]} */ lags) => Math.max(0, ...lags.map((lag) => lag ?? 0));
    const chosen = [...lagSeries].sort(([, a], [, b]) => worst(b) - worst(a)).slice(0, GROUPS_MAX).sort(([a], [b]) => (a < b ? -1 : 1));
    this.element.hidden = chosen.length === 0;
    const names = chosen.map(([name]) => name);
    if (names.join("\n") !== this.names.join("\n")) {
      this.names = names;
      fill(this.legend, ...names.map((name, index) =>
        h("li", {}, h(`span.swatch.line-${index + 1}`, { "aria-hidden": "true" }), h("bdi", { title: name }, name), " ", h("span.value-now"))));
    }
    for (const [index, line] of [...this.legend.children].entries()) {
      const lag = lagNow.get(names[index] ?? "");
      setText(line.lastElementChild, lag === undefined ? "deleted" : lag === null ? "unknown" : formatShort(lag));
    }
    this.plot.draw(series.times, chosen.map(([, lags]) => lags), names.map((_, index) => ({ colour: `--line-${index + 1}` })));
  }
}
