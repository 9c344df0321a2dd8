/** The API's documents as types. `openapi.ts` and `asyncapi.ts` beside it are generated: `make typescript`. */

import type { components as Socket } from "./asyncapi.js";
import type { components, operations } from "./openapi.js";

export type Schema<Name extends keyof components["schemas"]> = components["schemas"][Name];
/** The query of an operation. */
export type Query<Id extends keyof operations> = NonNullable<operations[Id]["parameters"]["query"]>;
/** The body of an operation. */
export type Body<Id extends keyof operations> = NonNullable<
  operations[Id]["requestBody"]
>["content"]["application/json"];
/** What an operation answers where it succeeds. */
export type Answer<Id extends keyof operations> = operations[Id]["responses"][200]["content"]["application/json"];
/** Any frame of the WebSocket; `op` says which. */
export type Frame = Extract<Socket["schemas"][keyof Socket["schemas"]], { op: string }>;
/** What is written as JSON, where undefined is the same as missing. */
export type Sent<T> = T extends object ? { [Name in keyof T]: T[Name] | undefined } : never;
