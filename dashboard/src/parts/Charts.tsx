// Charts: the sparkline of a row, the bar of a latency, and the throughput chart of the overview.
import { useLayoutEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { rate } from "../format";
import { theme } from "../theme";

const WIDTH = 96;
const HEIGHT = 24;

export function Sparkline({ values, label }: { values: number[]; label: string }) {
  const most = Math.max(1, ...values);
  const step = WIDTH / Math.max(1, values.length - 1);
  const points = values.map((v, i) => `${(i * step).toFixed(1)},${(HEIGHT - 2 - (v / most) * (HEIGHT - 4)).toFixed(1)}`);
  return (
    <svg class="sparkline" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={label}>
      {points.length > 1 && (
        <>
          <polygon class="area" points={`0,${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`} />
          <polyline points={points.join(" ")} />
        </>
      )}
    </svg>
  );
}

/** The median and the 95th percentile of a time. All rows share the scale, whose end is `most`. */
export function SpanBar({ p50, p95, most }: { p50: number; p95: number; most: number }) {
  const share = (ms: number): number => Math.max(1, (ms / Math.max(1, most)) * WIDTH);
  return (
    <svg class="span-bar" viewBox={`0 0 ${WIDTH} 6`} preserveAspectRatio="none" aria-hidden="true">
      <rect class="slow" width={share(p95)} height="6" />
      <rect width={share(p50)} height="6" />
    </svg>
  );
}

export type Series = { label: string; token: string; values: number[] };

/** Rates per second as lines. The colours come from the stylesheet, so a change of theme draws the chart again. */
export function RateChart({ at, series, height }: { at: number[]; series: Series[]; height: number }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const data: uPlot.AlignedData = [at.map((ms) => ms / 1000), ...series.map((s) => s.values)];
  const shown = theme.value;
  useLayoutEffect(() => {
    const parent = box.current;
    if (parent === null) return;
    const style = getComputedStyle(document.documentElement);
    const token = (name: string): string => style.getPropertyValue(name).trim();
    const axis: uPlot.Axis = {
      stroke: token("--muted"),
      grid: { stroke: token("--line"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui, sans-serif",
    };
    const made = new uPlot(
      {
        width: parent.clientWidth,
        height,
        legend: { show: false },
        cursor: { points: { show: false }, drag: { x: false, y: false }, y: false },
        scales: { y: { range: (_plot, _low, high) => [0, Math.max(1, high * 1.15)] } },
        axes: [
          { ...axis, size: 28, space: 90, incrs: [5, 10, 15, 30, 60, 300], values: "{HH}:{mm}:{ss}" },
          { ...axis, size: 44, values: (_plot, ticks) => ticks.map(rate) },
        ],
        series: [
          {},
          ...series.map((s) => ({ label: s.label, stroke: token(s.token), width: 1.75, points: { show: false } })),
        ],
      },
      data,
      parent,
    );
    plot.current = made;
    const resized = new ResizeObserver(() => made.setSize({ width: parent.clientWidth, height }));
    resized.observe(parent);
    return () => {
      resized.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shown, height, series.length]);
  useLayoutEffect(() => plot.current?.setData(data), [at, series]);
  const last = at.length - 1;
  return (
    <figure class="chart">
      <figcaption>
        {series.map((s) => (
          <span key={s.label} class={`legend legend-${s.label}`}>
            <span class="dot" aria-hidden="true" />
            {s.label} <b class="num">{last >= 0 ? rate(s.values[last] ?? 0) : "–"}</b>/s
          </span>
        ))}
      </figcaption>
      <div ref={box} class="chart-box" />
    </figure>
  );
}
