// The server's metrics in Prometheus' text form, and what is read from two of them.

export interface Sample {
  at: number; // seconds
  values: Map<string, number>; // by name, and by name with labels
}

const LINE = /^(\w+)(\{[^}]*\})?\s+(\S+)/;

/** Values by `name{labels}`, and their sums by `name`. */
export function parse(text: string, at: number): Sample {
  const values = new Map<string, number>();
  for (const line of text.split("\n")) {
    const found = line.startsWith("harmonium_") ? LINE.exec(line) : null;
    if (!found) continue;
    const [, name, labels, written] = found as unknown as [string, string, string | undefined, string];
    const value = Number(written);
    values.set(name, (values.get(name) ?? 0) + value);
    if (labels) values.set(name + labels, value);
  }
  return { at, values };
}

export const value = (sample: Sample, name: string): number | null => sample.values.get(`harmonium_${name}`) ?? null;

/** How much a counter grew; null where one of the two lacks it, or the server began anew. */
export function growth(from: Sample, to: Sample, name: string): number | null {
  const before = value(from, name);
  const after = value(to, name);
  return before === null || after === null || after < before ? null : after - before;
}

/** The median of what a histogram saw between two samples; null where it saw nothing. */
export function median(from: Sample, to: Sample, name: string): number | null {
  const buckets = new Map<number, number>();
  for (const [key, count] of to.values) {
    const found = key.startsWith(`harmonium_${name}_bucket{`) ? /le="([^"]+)"/.exec(key) : null;
    if (!found) continue;
    const bound = found[1] === "+Inf" ? Infinity : Number(found[1]);
    buckets.set(bound, (buckets.get(bound) ?? 0) + count - (from.values.get(key) ?? 0));
  }
  return middle([...buckets].sort(([a], [b]) => a - b));
}

/** Linear between the bounds of the bucket in which the median lies, as Prometheus has it. */
function middle(buckets: [number, number][]): number | null {
  const half = (buckets.at(-1)?.[1] ?? 0) / 2;
  if (half <= 0) return null;
  let [low, below] = [0, 0];
  for (const [bound, count] of buckets) {
    if (count >= half) return bound === Infinity ? low : low + ((bound - low) * (half - below)) / (count - below || 1);
    [low, below] = [bound, count];
  }
  return low;
}

/** The labels `gpu` of the series that has them. */
export function gpus(sample: Sample): string[] {
  const found = [...sample.values.keys()].map((key) => /^harmonium_gpu_utilization_ratio\{.*gpu="([^"]*)"/.exec(key)?.[1]);
  return found.filter((gpu): gpu is string => gpu !== undefined);
}
