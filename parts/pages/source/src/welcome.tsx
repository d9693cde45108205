// The first screen: what is served, and what can be tried.
import { useEffect, useState } from "preact/hooks";
import { getText, postJSON } from "./api";
import type { Settings, UserTurn } from "./conversation";
import { DEMOS, type Demo } from "./demos";
import { marked } from "./marked";
import { parse, value } from "./metrics";
import { retry, send } from "./run";
import { hardwareOf } from "./server";
import { now, useStore } from "./store";

const EXAMPLES = ["What is the capital of France?", "Plan a weekend in Lisbon.", "Write a haiku about the sea."];
const OF_NANO = ["What can you do?", "What is nano?", "How do I list the models?"]; // it knows this service only

const SPEED_AFTER_MS = 3000; // to write the metrics takes the server a while: first what a visitor waits for
const SERIES = ["inter_token_latency_seconds_sum", "inter_token_latency_seconds_count"] as const;
const SPEED = `v1/metrics?${SERIES.map((name) => `name[]=harmonium_${name}`).join("&")}`;

export function Welcome({ id }: { id: string }) {
  const server = useStore((all) => all.server);
  const apiKey = useStore((all) => all.apiKey);
  const { model, metadata, needsKey } = server;
  const [speed, setSpeed] = useState("");
  useEffect(() => {
    if (!model) return;
    const look = () =>
      getText(SPEED, apiKey).then(
        (text) => setSpeed(speedOf(text)),
        () => setSpeed(""), // a key may lack the scope
      );
    const timer = setTimeout(() => void look(), SPEED_AFTER_MS);
    return () => clearTimeout(timer);
  }, [model?.id, apiKey]);
  const isNano = model?.id === "nano";
  const profile = metadata?.profile;
  const facts = [
    profile && `${profile.engine} engine`,
    profile && hardwareOf(profile),
    model?.max_model_len && `${model.max_model_len.toLocaleString("en")} tokens of context`,
    speed,
  ];
  const better = profile?.notes[0];
  return (
    <section class="welcome">
      <h2>{model?.id ?? "Harmonium"}</h2>
      {model && <p class="facts">{facts.filter(Boolean).join(" · ")}</p>}
      {isNano && (
        <p>
          nano is a 6-million-parameter test model: it shows the API, not intelligence.{" "}
          {better ? (
            marked(better)
          ) : (
            <>
              For a real model: <code>harmonium serve gpt-oss-20b</code>
            </>
          )}
        </p>
      )}
      {needsKey && <p>First enter an API key at the top of the page.</p>}
      <ul class="demos">
        {DEMOS.map((demo) => {
          const isRefused = demo.isCrash && metadata !== null && !metadata.may_kill_engine;
          return (
            <li key={demo.title}>
              <button type="button" disabled={!model || isRefused} onClick={() => begin(id, demo)}>
                <strong>{demo.title}</strong>
                <span>{isRefused ? "Start the server with NIM_ALLOW_ENGINE_KILL=1 to try this." : demo.says}</span>
              </button>
            </li>
          );
        })}
      </ul>
      <div class="examples">
        {(isNano ? OF_NANO : EXAMPLES).map((text) => (
          <button key={text} type="button" disabled={!model} onClick={() => void send(id, { role: "user", text })}>
            {text}
          </button>
        ))}
      </div>
      <p class="note">Everything stays between this browser and this server.</p>
    </section>
  );
}

/** Tokens per second of one stream, as the server has measured; empty before the first answer. */
function speedOf(text: string): string {
  const sample = parse(text, 0);
  const [sum, count] = SERIES.map((name) => value(sample, name));
  return sum && count ? `${Math.round(count / sum).toLocaleString("en")} tokens/s measured` : "";
}

const SHOWN_BEFORE = 4; // tokens, before the engine is killed
const MOST_KILLS = 3;

function begin(id: string, demo: Demo): void {
  const question = { role: "user" as const, text: demo.question };
  if (demo.isCrash) void crash(id, question, demo.settings);
  else void send(id, question, demo.settings);
}

/** Kill the engine in the middle of an answer; a short one may end first, and is asked for again. */
async function crash(id: string, question: UserTurn, settings: Settings): Promise<void> {
  let kills = 0;
  const when = {
    tokens: SHOWN_BEFORE,
    act: () => {
      kills++;
      void postJSON("v1/engine/kill", {}, now().apiKey);
    },
  };
  await send(id, question, settings, when);
  for (let tries = 1; kills === tries && tries < MOST_KILLS; tries++) {
    const turns = now().chats.find((each) => each.id === id)?.turns ?? [];
    const last = turns.at(-1);
    if (last?.role !== "assistant" || last.restarts.length || last.error || last.finish === "stopped") return;
    await retry(id, turns.length - 1, undefined, when);
  }
}
