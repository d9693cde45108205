// A small plot of one figure over time, with its axes; what is under the pointer is told.
import { useState } from "preact/hooks";

const WIDTH = 240;
const HEIGHT = 60;

export interface Curve {
  title: string;
  text: string; // the figure now, in words
  points: (number | null)[]; // oldest first; null: not known
  shown: (value: number) => string;
  top?: number; // what a full plot means; unset: the largest of the points
  note?: string;
}

export function Plot({ title, text, points, shown, top, note, times }: Curve & { times: number[] }) {
  const [pointed, point] = useState<number | null>(null);
  const known = points.filter((each): each is number => each !== null);
  const full = top ?? Math.max(...known, 1e-9);
  const spoken = known.length ? `${title}: ${text}` : `${title}: nothing yet`;
  const last = times.length - 1;
  const ago = (at: number) => `${Math.round(times[last]! - times[at]!)} s ago`;
  const value = pointed === null ? null : points[pointed];
  const follow = (event: PointerEvent) => {
    const { left, width } = (event.currentTarget as Element).getBoundingClientRect();
    point(Math.max(0, Math.min(last, Math.round(((event.clientX - left) / width) * last))));
  };
  return (
    <figure class="plot">
      <figcaption>
        <span>{title}</span>
        <strong>{value == null ? text : `${shown(value)}, ${ago(pointed!)}`}</strong>
      </figcaption>
      <div class="axes">
        <span class="scale">{known.length > 0 && shown(full)}</span>
        <svg
          viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
          preserveAspectRatio="none"
          role="img"
          aria-label={spoken}
          onPointerMove={follow}
          onPointerLeave={() => point(null)}
        >
          <path class="grid" d={`M0 1H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}`} vector-effect="non-scaling-stroke" />
          <path class="line" d={path(points, full)} vector-effect="non-scaling-stroke" />
          {pointed !== null && last > 0 && (
            <path class="mark" d={`M${(pointed / last) * WIDTH} 0V${HEIGHT}`} vector-effect="non-scaling-stroke" />
          )}
        </svg>
        <span class="scale">0</span>
        <p class="scale time">
          <span>{last > 0 && ago(0)}</span>
          <span>now</span>
        </p>
      </div>
      {note && <p class="note">{note}</p>}
    </figure>
  );
}

/** A line with gaps where nothing is known; the newest point stands at the right edge. */
function path(points: (number | null)[], full: number): string {
  const step = WIDTH / Math.max(points.length - 1, 1);
  let isDrawing = false;
  const parts = points.map((point, index) => {
    if (point === null) {
      isDrawing = false;
      return "";
    }
    const place = `${(index * step).toFixed(1)} ${(HEIGHT - 1 - (HEIGHT - 2) * Math.min(point / full, 1)).toFixed(1)}`;
    const mark = isDrawing ? `L${place}` : `M${place}h.5`;
    isDrawing = true;
    return mark;
  });
  return parts.join("");
}
