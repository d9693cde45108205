// The sampling fields that few requests need.
import { MORE, type Settings } from "./conversation";
import { NumberField } from "./settings";

const LABELS: Record<string, string> = {
  top_k: "Top k",
  min_p: "Min p",
  presence_penalty: "Presence penalty",
  frequency_penalty: "Frequency penalty",
  repetition_penalty: "Repetition penalty",
  min_tokens: "Min tokens",
  thinking_token_budget: "Thinking budget",
};

export function More({ more, set }: { more: Settings["more"]; set: (more: Settings["more"]) => void }) {
  const put = (name: string, text: string) => {
    const { [name]: _, ...others } = more;
    set(text ? { ...others, [name]: text } : others);
  };
  return (
    <>
      <div class="pair">
        {Object.keys(MORE).map((name) => (
          <NumberField
            key={name}
            label={LABELS[name]!}
            name={name}
            hint="not set"
            value={more[name] ?? ""}
            set={(text) => put(name, text)}
          />
        ))}
      </div>
      <label>
        Stop strings, one a line
        <textarea rows={2} value={more.stop ?? ""} onInput={(event) => put("stop", event.currentTarget.value)} />
      </label>
      <label>
        Logit bias, token id to bias
        <textarea
          rows={1}
          class="code"
          placeholder='{"1734": -100}'
          value={more.logit_bias ?? ""}
          onInput={(event) => put("logit_bias", event.currentTarget.value)}
        />
      </label>
    </>
  );
}
