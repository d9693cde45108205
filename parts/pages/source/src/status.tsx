// How the server does: asked every two seconds while the page is looked at.
import { useEffect, useState } from "preact/hooks";
import { getText, worded } from "./api";
import { gpus, growth, median, parse, type Sample, value } from "./metrics";
import { type Curve, Plot } from "./plot";

const PERIOD_MS = 2000;
const KEPT = 60;

export function Status({ apiKey }: { apiKey: string }) {
  const [samples, setSamples] = useState<Sample[]>([]);
  const [error, setError] = useState("");
  useEffect(() => {
    setSamples([]);
    const ask = async () => {
      if (document.hidden) return;
      try {
        const sample = parse(await getText("v1/metrics", apiKey), performance.now() / 1000);
        setSamples((kept) => [...kept.slice(1 - KEPT), sample]);
        setError("");
      } catch (failure) {
        setError(worded(failure as Error));
      }
    };
    void ask();
    const timer = setInterval(() => void ask(), PERIOD_MS);
    return () => clearInterval(timer);
  }, [apiKey]);
  const last = samples.at(-1);
  const times = samples.map((sample) => sample.at);
  return (
    <section id="status" aria-labelledby="status-title">
      <h2 id="status-title">Status</h2>
      {error && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
      {last && <p class="note">{health(last)}</p>}
      <div class="plots">{last && curves(samples).map((curve) => <Plot key={curve.title} {...curve} times={times} />)}</div>
    </section>
  );
}

function health(last: Sample): string {
  const restarts = value(last, "engine_restarts_total") ?? 0;
  const isUp = value(last, "engine_up") === 1;
  const again = restarts ? `; it was started again ${restarts === 1 ? "once" : `${restarts} times`}` : "";
  return `The engine ${isUp ? "answers" : "does not answer"}${again}. Every 2 seconds, from v1/metrics.`;
}

function curves(samples: Sample[]): Curve[] {
  const last = samples.at(-1)!;
  const running = samples.map((sample) => value(sample, "engine_running_requests"));
  const kv = samples.map((sample) => value(sample, "engine_kv_usage_ratio"));
  const speed = eachPair(samples, (from, to) => rate(from, to, "engine_generated_tokens_total"));
  const hits = samples.map(hitShare);
  const first = windowed(samples, "time_to_first_token_seconds");
  const gap = windowed(samples, "inter_token_latency_seconds");
  return [
    {
      title: "Requests",
      text: `${shown(running.at(-1), "")} running, ${shown(value(last, "engine_waiting_requests"), "")} waiting`,
      points: running,
      shown: plain,
      top: value(last, "engine_max_requests") ?? undefined,
    },
    { title: "Tokens per second", text: shown(speed.at(-1), ""), points: speed, shown: plain },
    { title: "KV cache in use", text: percent(kv.at(-1)), points: kv, shown: percent, top: 1 },
    { title: "Prefix-cache hits", text: percent(hits.at(-1)), points: hits, shown: percent, top: 1 },
    { title: "Time to first token, median", text: milliseconds(first.at(-1)), points: first, shown: milliseconds },
    { title: "Between tokens, median", text: milliseconds(gap.at(-1)), points: gap, shown: milliseconds },
    ...gpus(last).map((gpu) => board(samples, gpu)),
  ];
}

function board(samples: Sample[], gpu: string): Curve {
  const last = samples.at(-1)!;
  const of = (sample: Sample, name: string) => value(sample, `gpu_${name}{gpu="${gpu}"}`);
  const used = samples.map((sample) => of(sample, "utilization_ratio"));
  const gigabytes = (name: string) => shown((of(last, name) ?? 0) / 1e9, " GB");
  return {
    title: `GPU ${gpu} at work`,
    text: percent(used.at(-1)),
    points: used,
    shown: percent,
    top: 1,
    note: `${gigabytes("memory_used_bytes")} of ${gigabytes("memory_total_bytes")} in use`,
  };
}

const rate = (from: Sample, to: Sample, name: string) => {
  const grown = growth(from, to, name);
  return grown === null ? null : grown / (to.at - from.at);
};

const hitShare = (sample: Sample) => {
  const asked = value(sample, "engine_prefix_cache_queries_total");
  return asked ? (value(sample, "engine_prefix_cache_hits_total") ?? 0) / asked : null;
};

const eachPair = (samples: Sample[], of: (from: Sample, to: Sample) => number | null) =>
  samples.map((to, index) => (index ? of(samples[index - 1]!, to) : null));

/** At each point the median of what came since the oldest sample kept. */
const windowed = (samples: Sample[], name: string) => samples.map((to) => median(samples[0]!, to, name));

const shown = (number: number | null | undefined, unit: string) =>
  number == null
    ? "–"
    : `${number < 10 && !Number.isInteger(number) ? number.toFixed(1) : Math.round(number).toLocaleString("en")}${unit}`;
const plain = (number: number) => shown(number, "");
const percent = (share: number | null | undefined) => (share == null ? "–" : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`);
const milliseconds = (seconds: number | null | undefined) => (seconds == null ? "–" : shown(seconds * 1000, " ms"));
