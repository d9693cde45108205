// What an answer cost: speed, time to the first token, tokens.
import type { Stats } from "./conversation";

export const waited = (ms: number) => (ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(1)} s`);

const spoken = (rate: number) => (rate < 100 ? rate.toFixed(1) : Math.round(rate).toLocaleString("en"));

export function Figures({ stats }: { stats: Stats | null }) {
  if (!stats?.usage || stats.firstTokenMs === null) return <span class="figures" />;
  const { prompt_tokens, completion_tokens, prompt_tokens_details } = stats.usage;
  const writing = Math.max(stats.totalMs - stats.firstTokenMs, 1) / 1000;
  const rate = completion_tokens > 1 ? `${spoken((completion_tokens - 1) / writing)} tokens/s` : "";
  const cached = prompt_tokens_details?.cached_tokens;
  const parts = [
    rate,
    `first after ${waited(stats.firstTokenMs)}`,
    `${prompt_tokens}${cached ? ` (${cached} cached)` : ""} + ${completion_tokens} tokens`,
  ];
  return <span class="figures">{parts.filter(Boolean).join(" · ")}</span>;
}
