// Two tools that run in the page, to try the loop: nothing leaves the browser.

export interface PageTool {
  name: string;
  title: string;
  description: string;
  parameters: object;
  run: (args: Record<string, unknown>) => unknown;
}

export const TOOLS: PageTool[] = [
  {
    name: "calculator",
    title: "Calculator",
    description: "Evaluate an arithmetic expression.",
    parameters: {
      type: "object",
      properties: { expression: { type: "string" } },
      required: ["expression"],
      additionalProperties: false,
    },
    run: ({ expression }) => ({ result: calculate(String(expression)) }),
  },
  {
    name: "get_weather",
    title: "Weather (made up)",
    description: "Get the weather.",
    parameters: {
      type: "object",
      properties: { location: { type: "string" } },
      required: ["location"],
      additionalProperties: false,
    },
    run: ({ location }) => weather(String(location)),
  },
];

/** What a call gives as text for the model: its result, or why it failed. */
export function runTool(name: string, args: string): string | null {
  const tool = TOOLS.find((each) => each.name === name);
  if (!tool) return null;
  try {
    return JSON.stringify(tool.run(JSON.parse(args) as Record<string, unknown>));
  } catch (error) {
    return JSON.stringify({ error: (error as Error).message });
  }
}

function weather(location: string): object {
  const seed = [...location].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) % 997, 7);
  const sky = ["sunny", "cloudy", "light rain", "windy"][seed % 4];
  return { location, temperature_celsius: (seed % 28) + 2, sky };
}

/** + - * / ^ and brackets, by recursive descent: the page's policy allows no eval. */
export function calculate(text: string): number {
  const plain = text.replaceAll("×", "*").replaceAll("÷", "/").replaceAll(",", "");
  const tokens = plain.match(/\d+(\.\d+)?|\.\d+|\*\*|[-+*/^()]/g) ?? [];
  if (tokens.join("") !== plain.replace(/\s/g, "")) throw new Error(`cannot read ${text}`);
  let at = 0;
  const sum = (): number => {
    let value = product();
    while (tokens[at] === "+" || tokens[at] === "-") value += tokens[at++] === "+" ? product() : -product();
    return value;
  };
  const product = (): number => {
    let value = power();
    while (tokens[at] === "*" || tokens[at] === "/") {
      if (tokens[at++] === "*") value *= power();
      else value /= power();
    }
    return value;
  };
  const power = (): number => {
    const base = unary();
    if (tokens[at] !== "^" && tokens[at] !== "**") return base;
    at++;
    return base ** power();
  };
  const unary = (): number => {
    const token = tokens[at++];
    if (token === "-") return -unary();
    if (token === "+") return unary();
    if (token === "(") {
      const value = sum();
      if (tokens[at++] !== ")") throw new Error("a bracket is not closed");
      return value;
    }
    if (token === undefined || Number.isNaN(Number(token))) throw new Error(`cannot read ${text}`);
    return Number(token);
  };
  const value = sum();
  if (at !== tokens.length) throw new Error(`cannot read ${text}`);
  return value;
}
