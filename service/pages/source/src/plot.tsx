// A small plot of one figure over time.

const WIDTH = 240;
const HEIGHT = 44;

export interface Curve {
  title: string;
  text: string; // the figure now, in words
  points: (number | null)[]; // oldest first; null: not known
  top?: number; // what a full plot means; unset: the largest of the points
  note?: string;
}

export function Plot({ title, text, points, top, note }: Curve) {
  const known = points.filter((point): point is number => point !== null);
  const full = top ?? Math.max(...known, 1e-9);
  const spoken = known.length ? `${title}: ${text}` : `${title}: nothing yet`;
  return (
    <figure class="plot">
      <figcaption>
        <span>{title}</span>
        <strong>{text}</strong>
      </figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={spoken}>
        <path class="line" d={path(points, full)} vector-effect="non-scaling-stroke" />
      </svg>
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
    const place = `${(index * step).toFixed(1)} ${(HEIGHT - 2 - (HEIGHT - 4) * Math.min(point / full, 1)).toFixed(1)}`;
    const mark = isDrawing ? `L${place}` : `M${place}h.5`;
    isDrawing = true;
    return mark;
  });
  return parts.join("");
}
