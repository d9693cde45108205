// An answer token by token: how likely each was, and what else could have stood there.
import { useState } from "preact/hooks";
import type { Rival } from "./api";
import type { Token } from "./conversation";

const CONTROL = /^<\|.*\|>$/;
const percent = (logprob: number) => {
  const share = Math.exp(logprob) * 100;
  return share >= 10 ? `${share.toFixed(0)} %` : share >= 0.1 ? `${share.toFixed(1)} %` : "< 0.1 %";
};

/** White space as it can be seen. */
const visible = (text: string) => text.replaceAll("\n", "↵").replaceAll("\t", "→").replace(/^ | $/g, "·") || "∅";

/** One of ten shades: 9 is certain. */
const shade = ({ logprob }: Token) => (logprob === null ? "given" : `p${Math.min(9, Math.floor(Math.exp(logprob) * 10))}`);

export function Tokens(props: { tokens: Token[]; canContinue: boolean; continueWith: (at: number, rival: Rival) => void }) {
  const { tokens } = props;
  const [pinned, setPinned] = useState<number | null>(null);
  const [pointed, setPointed] = useState<number | null>(null);
  const shown = pointed ?? pinned;
  const token = shown === null ? undefined : tokens[shown];
  return (
    <section class="tokens" aria-label="Tokens">
      <div class="tiles" onPointerLeave={() => setPointed(null)}>
        {tokens.map((each, at) => (
          <button
            key={at}
            type="button"
            class={`tile ${CONTROL.test(each.token) ? "chip" : shade(each)}`}
            aria-pressed={at === pinned}
            onPointerEnter={() => setPointed(at)}
            onClick={() => setPinned(at === pinned ? null : at)}
          >
            {visible(each.token)}
          </button>
        ))}
      </div>
      <div class="rivals">
        {token ? (
          <>
            <p>
              <strong>{JSON.stringify(token.token)}</strong> token {shown! + 1} of {tokens.length}, id {token.id},{" "}
              {token.logprob === null ? "given" : percent(token.logprob)}, {token.ms.toFixed(1)} ms after the one before
            </p>
            <ul>
              {token.rivals.map((rival) => (
                <li key={rival.id}>
                  <meter min={0} max={1} value={Math.exp(rival.logprob)} aria-label={`Probability of ${rival.token}`} />
                  <code>{visible(rival.token)}</code> {percent(rival.logprob)} <span class="note">id {rival.id}</span>
                  {props.canContinue && rival.id !== token.id && pinned === shown && (
                    <button type="button" onClick={() => props.continueWith(shown!, rival)}>
                      Continue from here with this token
                    </button>
                  )}
                </li>
              ))}
            </ul>
          </>
        ) : (
          <p class="note">Point at a token to see its alternatives. Click it to choose another one and continue from there.</p>
        )}
      </div>
    </section>
  );
}
