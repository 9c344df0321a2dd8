/*
 * A line chart of the last minutes, drawn on a canvas.
 *
 * Knows: uPlot, colours of the theme. Must never know: what is drawn, where values come from.
 */

// @ts-ignore - vendored as published, without its types
import uPlot from "/console/uplot.js";
import { h } from "./dom.js";
import { formatTime } from "./format.js";

/** @typedef {{colour: string, width?: number, dash?: number[], wash?: string}} Stroke colours are variables of the style sheet */

const HEIGHT_PX = 74;
// The shortest time axis, so that a chart with few values is not stretched.
const SECONDS_MIN = 60;
const FONT = "10px system-ui, sans-serif";
// A time of day in FONT is 46 pixels wide, a value 11 high: closer ticks would overlap.
const TICK_X_PX = 64;
const TICK_Y_PX = 24;
const VALUE_PX = 56;

export class Plot {
  /** @param {(value: number) => string} format */
  constructor(format) {
    this.format = format;
    this.element = h("div.plot", { "aria-hidden": "true" });
    /** @type {any} */
    this.chart = null;
    /** @type {Stroke[]} */
    this.strokes = [];
    /** @type {[number[], ...(number | null)[][]] | null} */
    this.data = null;
    new ResizeObserver(() => this.fit()).observe(this.element);
    // Colours are read when the chart is made.
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.restyle());
  }

  /** @param {number[]} times in seconds @param {(number | null)[][]} lines @param {Stroke[]} strokes one for each line */
  draw(times, lines, strokes) {
    this.data = [times, ...lines];
    if (JSON.stringify(strokes) !== JSON.stringify(this.strokes)) {
      this.strokes = strokes;
      this.clear();
    }
    const now = times.at(-1);
    if (now === undefined || this.element.clientWidth === 0) return;
    this.chart ??= this.make();
    this.chart.setData(this.data, false);
    this.chart.setScale("x", { min: Math.min(now - SECONDS_MIN, times[0] ?? now), max: now });
  }

  clear() {
    this.chart?.destroy();
    this.chart = null;
  }

  /** Read the colours again, after a change of theme. */
  restyle() {
    this.clear();
    if (this.data !== null) this.draw(this.data[0], /** @type {(number | null)[][]} */ (this.data.slice(1)), this.strokes);
  }

  fit() {
    const { clientWidth } = this.element;
    if (this.chart !== null && clientWidth > 0 && this.chart.width !== clientWidth) this.chart.setSize({ width: clientWidth, height: HEIGHT_PX });
  }

  make() {
    const style = getComputedStyle(document.documentElement);
    const colour = (/** @type {string} */ name) => resolveColour(style.getPropertyValue(name));
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false }, font: FONT };
    // A time at the left edge would overlap the values.
    const formatTimes = (/** @type {any} */ plot, /** @type {number[]} */ ticks) =>
      ticks.map((tick) => (plot.valToPos(tick, "x") < TICK_X_PX / 2 ? null : formatTime(tick * 1000).slice(0, 8)));
    const formatValues = (/** @type {any} */ _plot, /** @type {number[]} */ ticks) => ticks.map((tick) => this.format(tick));
    return new uPlot(
      {
        width: this.element.clientWidth,
        height: HEIGHT_PX,
        padding: [8, 26, 0, 0],
        cursor: { show: false },
        legend: { show: false },
        scales: { y: { range: (/** @type {any} */ _plot, /** @type {number} */ _min, /** @type {number} */ max) => [0, Math.max(1, (max || 0) * 1.15)] } },
        axes: [
          { ...axis, size: 18, space: TICK_X_PX, gap: 4, values: formatTimes, incrs: [10, 15, 30, 60, 120, 300] },
          { ...axis, size: VALUE_PX, space: TICK_Y_PX, gap: 4, values: formatValues },
        ],
        series: [
          {},
          ...this.strokes.map(({ colour: name, width = 1.5, dash = [], wash }) => ({
            stroke: colour(name), width, dash, fill: wash && colour(wash), points: { show: false }, spanGaps: true,
          })),
        ],
      },
      [[], ...this.strokes.map(() => [])],
      this.element,
    );
  }
}

/** Resolve a colour for a canvas, which does not know `light-dark()`. @param {string} value */
function resolveColour(value) {
  const element = h("span", { hidden: true });
  element.style.color = value;
  document.body.append(element);
  const { color } = getComputedStyle(element);
  element.remove();
  return color;
}
