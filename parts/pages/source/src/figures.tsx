// What an answer cost: speed, time to the first token, tokens.
import type { Stats } from "./conversation";

export const waited = (ms: number) => (ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(1)} s`);

const LEAST_S = 0.2; // tokens that come in one burst have no rate

export const counted = (tokens: number) => tokens.toLocaleString("en");

const spoken = (rate: number) => (rate < 100 ? rate.toFixed(1) : Math.round(rate).toLocaleString("en"));

export function Figures({ stats }: { stats: Stats | null }) {
  if (!stats?.usage || stats.firstTokenMs === null) return <span class="figures" />;
  const { prompt_tokens, completion_tokens, prompt_tokens_details } = stats.usage;
  const writing = (stats.totalMs - stats.firstTokenMs) / 1000;
  const rate = completion_tokens > 1 && writing >= LEAST_S ? `${spoken((completion_tokens - 1) / writing)} tokens/s` : "";
  const cached = prompt_tokens_details?.cached_tokens;
  const parts = [
    rate,
    `first token ${waited(stats.firstTokenMs)}`,
    `${counted(prompt_tokens)} in${cached ? ` (${counted(cached)} cached)` : ""}, ${counted(completion_tokens)} out`,
  ];
  return <span class="figures">{parts.filter(Boolean).join(" · ")}</span>;
}
