// What a strict compiler must accept, and what it must refuse.
import { ApiError, Client, Worker, type Entry } from "weir-client";

const client = new Client({ url: "http://127.0.0.1:8080", token: async () => "secret" });

export async function use(): Promise<string[]> {
  const { last_id } = await client.publish("orders", { order: 4711, urgent: true });
  // @ts-expect-error null is no value of a field
  await client.publish("orders", { order: null });
  // @ts-expect-error an entry's fields are text
  const order: number = (await client.getEntry("orders", last_id))?.fields.order;
  const ids: string[] = [String(order)];
  for await (const entry of client.tail(["orders", "returns"], { last: 10 })) ids.push(entry.id);
  return ids;
}

export const worker = new Worker(client, { stream: "orders", group: "billing", consumer: "worker-1" });
void worker.run(async ({ entry, ack, extend }) => {
  const text: string | undefined = entry.fields.order;
  if (await extend()) console.log(text);
  ack();
});

export async function sendBack(): Promise<string[]> {
  const group = client.group("orders", "billing");
  const { ids } = await group.deadLetter(["5-1"], "no such customer");
  // @ts-expect-error the description of the API has no such member
  await group.redrive({ filter: { reasons: "no such customer" } });
  const { entries } = await group.redrive({ filter: { reason: "no such customer" }, dry_run: true });
  // @ts-expect-error a dry run has no new entries
  const copies: string[] = entries.map(({ id }) => id);
  return [...ids, ...copies];
}

export function codeOf(error: unknown): string {
  return error instanceof ApiError ? error.code : "";
}

export const entry: Entry = { id: "1-0", stream: "s", fields: {}, pairs: [], deleted: false };

export async function look(): Promise<number> {
  // @ts-expect-error the description of the API has no such parameter
  await client.publish("orders", { order: 1 }, { maxlenn: 5 });
  for await (const one of client.group("orders", "billing").pending()) {
    // @ts-expect-error an entry that was given back has no idle time
    const idle: number = one.idle_ms;
    return idle;
  }
  const stream = await client.getStream("orders");
  return stream?.retention.max_len ?? 0;
}
