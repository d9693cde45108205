// What a first visit can try. Each sets all settings, and its conversation alone has them.
import { DEFAULTS, type Settings } from "./conversation";

export interface Demo {
  title: string;
  says: string;
  question: string;
  settings: Settings;
  isCrash?: boolean; // the engine is killed once the answer has begun
}

const EVENT = {
  type: "object",
  properties: {
    name: { type: "string" },
    date: { type: "string" },
    participants: { type: "array", items: { type: "string" } },
  },
  required: ["name", "date", "participants"],
  additionalProperties: false,
};

const PLAIN: Settings = { ...DEFAULTS, temperature: "0" };

export const DEMOS: Demo[] = [
  {
    title: "Watch a tool call",
    says: "The model calls a calculator that runs in this page.",
    question: "Please calculate 17 * 23",
    settings: { ...PLAIN, tools: ["calculator"] },
  },
  {
    title: "Fill a form from text",
    says: "A JSON schema constrains every token of the answer.",
    question: "Alice and Bob are going to a science fair on Friday.",
    settings: {
      ...PLAIN,
      system: "Extract the event information.",
      usesSchema: true,
      schema: JSON.stringify(EVENT, null, 2),
    },
  },
  {
    title: "See the tokens",
    says: "Each token with its probability and alternatives, reasoning included.",
    question: "What can you do?",
    settings: { ...PLAIN, probabilities: true },
  },
  {
    title: "Kill the engine",
    says: "The engine is killed while it answers, and the answer continues.",
    question: "What can you do?",
    settings: PLAIN,
    isCrash: true,
  },
];
