// A JSON Schema of one object as a list of fields, for those who do not write schemas.

type Schema = Record<string, unknown>;

export interface Field {
  name: string;
  schema: Schema; // of its value; what the form does not show stays in it
  isRequired: boolean;
}

export const KINDS: Record<string, Schema> = {
  text: { type: "string" },
  number: { type: "number" },
  "whole number": { type: "integer" },
  "yes or no": { type: "boolean" },
  "list of texts": { type: "array", items: { type: "string" } },
  "one of": { type: "string", enum: ["yes", "no"] },
};

const SHOWN = new Set(["type", "properties", "required", "additionalProperties"]);

/** The fields of a schema, or null where it is more than a form can show. */
export function fieldsOf(text: string): Field[] | null {
  const schema = read(text);
  if (schema?.type !== "object" || !isObject(schema.properties) || schema.additionalProperties !== false) return null;
  if (Object.keys(schema).some((key) => !SHOWN.has(key))) return null;
  const fields = Object.entries(schema.properties);
  const required = Array.isArray(schema.required) ? schema.required : [];
  if (!fields.every(([, each]) => isObject(each))) return null;
  return fields.map(([name, each]) => ({ name, schema: each as Schema, isRequired: required.includes(name) }));
}

/** The same as a schema's text. */
export function schemaOf(fields: Field[]): string {
  const properties = Object.fromEntries(fields.map(({ name, schema }) => [name, schema]));
  const required = fields.filter((each) => each.isRequired).map(({ name }) => name);
  return JSON.stringify({ type: "object", properties, required, additionalProperties: false }, null, 2);
}

/** The schema that one example follows; null where it is no object in JSON. */
export function schemaFrom(text: string): string | null {
  const example = read(text);
  return example && JSON.stringify(shapeOf(example), null, 2);
}

function shapeOf(value: unknown): Schema {
  if (Array.isArray(value)) return { type: "array", items: value.length ? shapeOf(value[0]) : { type: "string" } };
  if (isObject(value)) {
    const properties = Object.fromEntries(Object.entries(value).map(([name, each]) => [name, shapeOf(each)]));
    return { type: "object", properties, required: Object.keys(value), additionalProperties: false };
  }
  if (value === null) return { type: ["string", "null"] };
  if (typeof value === "number") return { type: Number.isInteger(value) ? "integer" : "number" };
  return { type: typeof value };
}

/** The kind of a field's value; nothing where it is none that the form knows. */
export function kindOf({ type, items, ...rest }: Schema): string {
  if (["anyOf", "oneOf", "allOf", "$ref", "const", "properties"].some((key) => key in rest)) return "";
  if ("enum" in rest) return type === "string" ? "one of" : "";
  if (type === "array") return isObject(items) && kindOf(items) === "text" ? "list of texts" : "";
  return Object.keys(KINDS).find((kind) => KINDS[kind]!.type === type) ?? "";
}

export interface Call {
  name: string;
  description: string;
  parameters: object;
}

/** The functions among the API's tools, or null where they have more than a form can show. */
export function functionsOf(text: string): Call[] | null {
  if (!text.trim()) return [];
  const tools = parsed(text);
  if (!Array.isArray(tools)) return null;
  const calls = tools.map((tool) => (isObject(tool) && tool.type === "function" ? tool.function : null));
  const shown = ["name", "description", "parameters"];
  const isPlain = (call: unknown): call is Schema =>
    isObject(call) && typeof call.name === "string" && Object.keys(call).every((key) => shown.includes(key));
  if (!calls.every(isPlain)) return null;
  return calls.map(({ name, description, parameters }) => ({
    name: name as string,
    description: typeof description === "string" ? description : "",
    parameters: isObject(parameters) ? parameters : JSON.parse(schemaOf([])),
  }));
}

export function toolsOf(calls: Call[]): string {
  return calls.length
    ? JSON.stringify(
        calls.map((call) => ({ type: "function", function: call })),
        null,
        2,
      )
    : "";
}

export function newFunction(beside: Call[]): Call {
  let number = beside.length + 1;
  while (beside.some(({ name }) => name === `function_${number}`)) number++;
  return { name: `function_${number}`, description: "", parameters: JSON.parse(schemaOf([])) };
}

const isObject = (value: unknown): value is Schema => typeof value === "object" && value !== null && !Array.isArray(value);

function read(text: string): Schema | null {
  const found = parsed(text);
  return isObject(found) ? found : null;
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
