/*
 * Three small charts of a stream, rate, lag and latency, and one of the lag of each group; the last five minutes.
 *
 * Knows: what each line means. Must never know: how lines are drawn, where figures come from.
 */

import { fill, h, write } from "../shared/dom.js";
import { duration, rate, short } from "../shared/format.js";
import { Plot } from "../shared/plot.js";

/** @typedef {import("./measures.js").Measures} Measures */
/** @typedef {import("./measures.js").Series} Series */
/** @typedef {import("../shared/plot.js").Stroke} Stroke */

const GROUPS_MAX = 6;
/** @type {Stroke} */
const MAIN = { colour: "--accent", wash: "--accent-wash" };
/** @type {Stroke} */
const SECOND = { colour: "--warn", width: 1, dash: [4, 3] };

/** @type {{label: string, hint: string, unit: (value: number | null) => string,
 *   lines: {of: keyof Series, name: string, stroke: Stroke}[]}[]} */
const CHARTS = [
  { label: "Rate", hint: "entries published a second", unit: rate, lines: [{ of: "rate", name: "", stroke: MAIN }] },
  {
    label: "Lag",
    hint: "entries that the furthest behind group has not been given",
    unit: (value) => (value === null ? "–" : short(value)),
    lines: [{ of: "lag", name: "", stroke: MAIN }],
  },
  {
    label: "Latency",
    hint: "from an entry's ID to this page, median and 99th percentile",
    unit: duration,
    lines: [{ of: "p50", name: "median", stroke: MAIN }, { of: "p99", name: "99 %", stroke: SECOND }],
  },
];

export class Charts {
  constructor() {
    this.charts = CHARTS.map((chart) => {
      const plot = new Plot(chart.unit);
      // No live region: a figure that is read out every second helps nobody.
      const figures = chart.lines.map(() => h("span.value-now", {}, "–"));
      const legend = chart.lines.map(({ name }, place) =>
        h("span.legend-line", {}, name && h(`span.swatch.${place === 0 ? "main" : "second"}`, { "aria-hidden": "true" }), name && `${name} `, figures[place]));
      const element = h(
        "section.chart",
        { "aria-label": `${chart.label}: ${chart.hint}`, title: chart.hint },
        h("h2.small", {}, chart.label),
        h("span.figure", {}, ...legend),
        plot.element,
      );
      return { ...chart, figures, plot, element };
    });
    this.element = h("div.charts", {}, ...this.charts.map(({ element }) => element));
  }

  restyle() {
    for (const { plot } of this.charts) plot.restyle();
  }

  /** @param {Series} series */
  draw(series) {
    for (const { lines, figures, unit, plot } of this.charts) {
      for (const [place, { of }] of lines.entries()) {
        const latest = series[of].findLast((value) => value !== null) ?? null;
        // Clocks of whole milliseconds cannot say how much less.
        write(figures[place], latest === null ? "–" : unit === duration && latest < 1 ? "<1 ms" : unit(latest));
      }
      plot.draw(series.at, lines.map(({ of }) => series[of]), lines.map(({ stroke }) => stroke));
    }
  }
}

/** The lag of each group over time: of the worst few, where there are many. */
export class LagChart {
  constructor() {
    this.plot = new Plot((value) => short(value));
    this.legend = h("ul.legend");
    this.element = h(
      "section.chart.lags",
      { hidden: true, "aria-label": "Lag of each group over time" },
      h("h2.small", {}, "Lag over time"),
      this.legend,
      this.plot.element,
    );
    this.shown = "";
  }

  restyle() {
    this.plot.restyle();
  }

  /** @param {Measures} measures */
  draw({ series, lagSeries, lagNow }) {
    const worst = (/** @type {(number | null)[]} */ lags) => lags.reduce((most, lag) => Math.max(most ?? 0, lag ?? 0), 0) ?? 0;
    const chosen = [...lagSeries].sort(([, a], [, b]) => worst(b) - worst(a)).slice(0, GROUPS_MAX).sort(([a], [b]) => (a < b ? -1 : 1));
    this.element.hidden = chosen.length === 0;
    const names = chosen.map(([name]) => name);
    if (names.join("\n") !== this.shown) {
      this.shown = names.join("\n");
      fill(this.legend, ...names.map((name, place) =>
        h("li", {}, h(`span.swatch.line-${place + 1}`, { "aria-hidden": "true" }), h("bdi", { title: name }, name), " ", h("span.value-now"))));
    }
    for (const [place, line] of [...this.legend.children].entries()) {
      const lag = lagNow.get(names[place] ?? "");
      write(/** @type {Element} */ (line.lastElementChild), lag === undefined ? "gone" : lag === null ? "unknown" : short(lag));
    }
    this.plot.draw(series.at, chosen.map(([, lags]) => lags), names.map((_, place) => ({ colour: `--line-${place + 1}` })));
  }
}
