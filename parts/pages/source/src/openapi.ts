// An OpenAPI document as this page reads it.

export interface Schema {
  $ref?: string;
  type?: string;
  description?: string;
  const?: unknown;
  enum?: unknown[];
  items?: Schema;
  anyOf?: Schema[];
  oneOf?: Schema[];
  properties?: Record<string, Schema>;
  required?: string[];
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  minLength?: number;
  maxLength?: number;
  maxItems?: number;
  default?: unknown;
  examples?: unknown[];
}

interface Parameter {
  name: string;
  in: string;
  description?: string;
  required?: boolean;
  schema: Schema;
}

type Body = Record<string, unknown>;

interface Content {
  content?: Record<string, { schema?: Schema; examples?: Record<string, { value: Body }> }>;
}

interface OperationObject {
  description?: string;
  parameters?: Parameter[];
  requestBody?: Content;
  responses: Record<string, Content>;
}

export interface Document {
  paths: Record<string, Record<string, OperationObject>>;
  components: { schemas: Record<string, Schema> };
}

export interface Operation {
  method: string;
  path: string;
  query: string; // of what it must have, by example
  description: string;
  parameters: Field[];
  request: Schema | null;
  examples: Record<string, Body>; // bodies by name
  answer: Schema | null;
}

export interface Field {
  name: string;
  type: string;
  isRequired: boolean;
  description: string;
  inner: Schema[]; // the objects that it may hold
}

const GROUPS: [string, RegExp][] = [
  ["Chat completions", /^\/v1\/chat/],
  ["Responses", /^\/v1\/responses/],
  ["Messages (Anthropic)", /^\/v1\/messages/],
  ["Completions and tokens", /^\/(v1\/completions|tokenize|detokenize)/],
  ["Files and batches", /^\/v1\/(files|batches)/],
  ["Models", /^\/v1\/models/],
  ["The service", /./],
];

/** The operations by what they are about, in the document's order. */
export function grouped(document: Document): [string, Operation[]][] {
  const all = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => operationOf(method, path, operation)),
  );
  const group = ({ path }: Operation) => GROUPS.find(([, pattern]) => pattern.test(path))![0];
  return GROUPS.map(([name]) => [name, all.filter((each) => group(each) === name)]);
}

function operationOf(method: string, path: string, of: OperationObject): Operation {
  const parameters = (of.parameters ?? []).map((each) => ({
    name: each.name,
    type: `${typeOf(each.schema)} in the ${each.in}`,
    isRequired: each.required ?? false,
    description: each.description ?? "",
    inner: [],
  }));
  const needed = (of.parameters ?? []).filter((each) => each.required && each.in === "query");
  const query = needed.map((each) => `${each.name}=${encodeURIComponent(String(each.schema.examples?.[0] ?? ""))}`);
  return {
    method: method.toUpperCase(),
    path,
    query: query.length ? `?${query.join("&")}` : "",
    description: of.description ?? "",
    parameters,
    request: schemaOf(of.requestBody),
    examples: Object.fromEntries(
      Object.entries(jsonOf(of.requestBody)?.examples ?? {}).map(([name, { value }]) => [name, value]),
    ),
    answer: schemaOf(of.responses["200"]),
  };
}

const jsonOf = (content?: Content) => content?.content?.["application/json"];
const schemaOf = (content?: Content): Schema | null => jsonOf(content)?.schema ?? null;

export function resolved(schema: Schema, document: Document): Schema {
  return schema.$ref ? document.components.schemas[nameOf(schema)]! : schema;
}

/** A schema's own name, without what told two of one name apart. */
export const nameOf = (schema: Schema): string => schema.$ref?.split("/").pop() ?? "";
export const titleOf = (schema: Schema): string =>
  nameOf(schema)
    .split("__")
    .pop()!
    .replace(/-(In|Out)put$/, "");

/** The fields of an object; those without a type are refused, and so are not shown. */
export function fieldsOf(schema: Schema, document: Document): Field[] {
  const { properties = {}, required = [] } = resolved(schema, document);
  return Object.entries(properties)
    .filter(([, each]) => isTyped(each))
    .map(([name, each]) => ({
      name,
      type: typeOf(each),
      isRequired: required.includes(name),
      description: described(each),
      inner: objectsIn(each, document),
    }))
    .sort((a, b) => Number(b.isRequired) - Number(a.isRequired));
}

const isTyped = (schema: Schema): boolean => ["type", "$ref", "anyOf", "oneOf", "enum", "const"].some((key) => key in schema);

export function typeOf(schema: Schema): string {
  const variants = (schema.anyOf ?? schema.oneOf)?.filter((each) => each.type !== "null");
  if (variants) return [...new Set(variants.map(typeOf))].join(" or ");
  if (schema.$ref) return titleOf(schema);
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" or ");
  if (schema.type === "array") return schema.items ? `list of ${typeOf(schema.items)}` : "list";
  return schema.type ?? "any";
}

function described(schema: Schema): string {
  const range = [schema, ...(schema.anyOf ?? [])].map(rangeOf).find(Boolean);
  return [schema.description, range].filter(Boolean).join(" ");
}

/** In words; bounds that are only those of an integer's size are none. */
function rangeOf({ minimum = -Infinity, exclusiveMinimum, maximum = Infinity }: Schema): string {
  const from = exclusiveMinimum !== undefined ? `Above ${exclusiveMinimum}` : minimum > -1e9 ? `At least ${minimum}` : "";
  if (maximum >= 1e9) return from && `${from}.`;
  if (exclusiveMinimum === undefined && from) return `${minimum} to ${maximum}.`;
  return from ? `${from}, at most ${maximum}.` : `At most ${maximum}.`;
}

function objectsIn(schema: Schema, document: Document): Schema[] {
  if (schema.$ref) {
    const found = resolved(schema, document);
    return found.properties ? [schema] : objectsIn(found, document);
  }
  return [...(schema.anyOf ?? schema.oneOf ?? []), ...(schema.items ? [schema.items] : [])].flatMap((each) =>
    objectsIn(each, document),
  );
}
