/*
 * Three small charts: rate, lag, latency, the last five minutes.
 *
 * Knows: uPlot, colours of the theme. Must never know: where figures come from.
 */

// @ts-ignore - vendored as published; its types stay at home
import uPlot from "/console/uplot.js";
import { h, write } from "./dom.js";
import { clock, duration, rate, short } from "./format.js";

/** @typedef {import("./measures.js").Series} Series */

const HEIGHT_PX = 74;
// A chart that has just begun is not stretched further than this.
const SECONDS_MIN = 60;

/** @type {{key: string, label: string, hint: string, unit: (value: number | null) => string,
 *   lines: (keyof Series)[]}[]} */
const CHARTS = [
  { key: "rate", label: "Rate", hint: "entries published a second", unit: rate, lines: ["rate"] },
  {
    key: "lag",
    label: "Lag",
    hint: "entries that the furthest behind group has not been given",
    unit: (value) => (value === null ? "–" : short(value)),
    lines: ["lag"],
  },
  {
    key: "latency",
    label: "Latency",
    hint: "from an entry's ID to this page, median and 99th percentile",
    unit: duration,
    lines: ["p50", "p99"],
  },
];

export class Charts {
  constructor() {
    this.charts = CHARTS.map((chart) => {
      // No live region: a figure that is read out every second helps nobody.
      const figure = h("span.figure", {}, "–");
      const canvas = h("div.plot", { "aria-hidden": "true" });
      const element = h(
        "section.chart",
        { "aria-label": `${chart.label}: ${chart.hint}`, title: chart.hint },
        h("h2.small", {}, chart.label),
        figure,
        canvas,
      );
      return { ...chart, figure, canvas, element, plot: /** @type {any} */ (null) };
    });
    /** @type {Series | null} */
    this.series = null;
    this.element = h("div.charts", {}, ...this.charts.map(({ element }) => element));
    new ResizeObserver(() => this.fit()).observe(this.element);
    // Colours are read when a chart is made.
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.restyle());
  }

  restyle() {
    for (const chart of this.charts) {
      chart.plot?.destroy();
      chart.plot = null;
    }
    if (this.series !== null) this.draw(this.series);
  }

  fit() {
    for (const { plot, canvas } of this.charts) {
      if (plot !== null && canvas.clientWidth > 0) plot.setSize({ width: canvas.clientWidth, height: HEIGHT_PX });
    }
  }

  /** @param {Series} series */
  draw(series) {
    this.series = series;
    for (const chart of this.charts) {
      const latest = chart.lines.map((line) => series[line].findLast((value) => value !== null) ?? null);
      const known = latest.filter((value) => value !== null);
      write(chart.figure, known.length === 0 ? "–" : known.map((value) => chart.unit(value)).join(" · "));
      if (chart.canvas.clientWidth === 0) continue;
      chart.plot ??= this.plot(chart);
      const now = series.at.at(-1) ?? 0;
      chart.plot.setData([series.at, ...chart.lines.map((line) => series[line])], false);
      chart.plot.setScale("x", { min: Math.min(now - SECONDS_MIN, series.at[0] ?? now), max: now });
    }
  }

  /** @param {{canvas: any, unit: (value: number | null) => string, lines: string[]}} chart */
  plot(chart) {
    const style = getComputedStyle(document.documentElement);
    /** @param {string} name */
    const colour = (name) => probe(style.getPropertyValue(name));
    const [line, fill, muted, rule] = ["--accent", "--accent-wash", "--muted", "--rule"].map(colour);
    const axis = { stroke: muted, grid: { stroke: rule, width: 1 }, ticks: { show: false }, font: "10px system-ui, sans-serif" };
    return new uPlot(
      {
        width: chart.canvas.clientWidth,
        height: HEIGHT_PX,
        padding: [6, 2, 0, 0],
        cursor: { show: false },
        legend: { show: false },
        scales: { y: { range: (/** @type {any} */ _plot, /** @type {number} */ _min, /** @type {number} */ max) => [0, Math.max(1, (max || 0) * 1.15)] } },
        axes: [
          { ...axis, size: 16, space: 72, gap: 2, values: (/** @type {any} */ _plot, /** @type {number[]} */ ticks) => ticks.map((tick) => clock(tick * 1000).slice(0, 8)), incrs: [15, 30, 60, 120] },
          { ...axis, size: 52, space: 26, gap: 4, values: (/** @type {any} */ _plot, /** @type {number[]} */ ticks) => ticks.map((tick) => chart.unit(tick)) },
        ],
        series: [
          {},
          ...chart.lines.map((_, place) => ({
            stroke: place === 0 ? line : muted,
            width: place === 0 ? 1.5 : 1,
            dash: place === 0 ? [] : [3, 3],
            fill: place === 0 ? fill : undefined,
            points: { show: false },
            spanGaps: true,
          })),
        ],
      },
      [[], ...chart.lines.map(() => [])],
      chart.canvas,
    );
  }
}

/** A colour as a canvas understands it: themes use functions that only elements do. @param {string} value */
function probe(value) {
  const element = h("span", { hidden: true });
  element.style.color = value;
  document.body.append(element);
  const { color } = getComputedStyle(element);
  element.remove();
  return color;
}
