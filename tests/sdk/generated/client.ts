// What a user of a client made by @hey-api/openapi-ts does; the gateway's URL is the argument. It stands beside the
// generated folder `weir`, knows its functions by the names of the operations, and neither paths nor headers.
import { ackEntries, addEntries, addEntryBatch, ensureGroup, listPending, publish, readEntries, readGroup } from "./weir";
import type { EntryInput, Problem } from "./weir";
import { createClient } from "./weir/client";

declare const process: { argv: string[] };

const client = createClient({ baseUrl: process.argv[2] });
const stream = "typed/orders eu";
const group = "billing";

function equal(found: unknown, expected: unknown): void {
    const [one, other] = [JSON.stringify(found), JSON.stringify(expected)];
    if (one !== other) throw new Error(`${one} is not ${other}`);
}

/** The answer of a call that was not refused. */
function taken<T>(answer: { data?: T; error?: unknown }): T {
    if (answer.data === undefined) throw new Error(JSON.stringify(answer.error));
    return answer.data;
}

function entry(number: number, id = "*"): EntryInput {
    return { fields: { item: "äpfel", number, ripe: true }, id };
}

async function publishes(): Promise<string> {
    const one = taken(await addEntries({ client, path: { stream }, body: entry(1) }));
    equal(typeof one.id, "string");
    const entries = [entry(2), entry(3)];
    const batch = taken(await addEntryBatch({ client, path: { stream }, body: { entries } }));
    equal([batch.count, batch.ids?.length], [2, 2]);
    const streams = { "typed other": [entry(1)], [stream]: [entry(4)] };
    const many = taken(await publish({ client, body: { streams } }));
    return many.streams[stream].last_id;
}

async function waits(after: string): Promise<void> {
    let done = false;
    const waiting = readEntries({ client, path: { stream }, query: { after, wait: 20_000 } });
    void waiting.then(() => (done = true));
    await new Promise((resolve) => setTimeout(resolve, 300));
    equal(done, false);
    const added = taken(await addEntries({ client, path: { stream }, body: entry(5) }));
    const page = taken(await waiting);
    equal(page.entries, [{ id: added.id, fields: { item: "äpfel", number: "5", ripe: "true" } }]);
    equal(page.next, added.id);
}

async function works(): Promise<void> {
    taken(await ensureGroup({ client, path: { stream, group }, body: { start: "0" } }));
    const consumer = "worker 1";
    for (const expected of [3, 2]) {
        const read = (body: { count?: number; after?: string }) =>
            readGroup({ client, path: { stream, group, consumer }, body });
        const ids = taken(await read({ count: 3 })).entries.map((one) => one.id);
        equal(taken(await read({ after: "0" })).entries.map((one) => one.id), ids);
        const done = taken(await ackEntries({ client, path: { stream, group }, body: { ids } }));
        equal(done.acknowledged, expected);
    }
    equal(taken(await listPending({ client, path: { stream, group } })).count, 0);
}

async function isRefused(): Promise<void> {
    const { error, response } = await addEntries({ client, path: { stream }, body: entry(0, "1-1") });
    const problem: Problem | undefined = error;
    equal([response?.status, problem?.status, problem?.retryable], [409, 409, false]);
    if (problem?.code !== "id_not_increasing") throw new Error(problem?.code);
    // @ts-expect-error - the codes are an enum, and this is none of them
    if (problem.code === "no_such_code") throw new Error();
}

/** What must not compile. */
export function refusedByTheCompiler(): void {
    // @ts-expect-error - an entry has fields
    void addEntries({ client, path: { stream }, body: { id: "1-1" } });
    // @ts-expect-error - a value is a string, a number or a boolean
    void addEntries({ client, path: { stream }, body: { fields: { number: {} } } });
    // @ts-expect-error - the stream is missing
    void readEntries({ client, query: { after: "0" } });
    // @ts-expect-error - there is no such parameter
    void readEntries({ client, path: { stream }, query: { before: "0" } });
}

async function main(): Promise<void> {
    await waits(await publishes());
    await works();
    await isRefused();
    console.log("all agree");
}

void main();
