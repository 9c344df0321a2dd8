// What a worker does with a client made by orval; it stands beside the generated file `weir.ts`, and knows its functions
// by the names of the operations, and neither paths nor headers.
import {
    ackEntries,
    addEntries,
    addEntryBatch,
    addEntriesNdjson,
    addRawEntry,
    ensureGroup,
    listPending,
    publish,
    readGroup,
} from "./weir.js";
import type { EntryInput } from "./weir.js";

declare const process: { argv: string[] };

const stream = process.argv[2];
// orval 8 encodes names in paths with `urlEncodeParameters`, orval 7 never does.
const inPath = stream.startsWith("orval7/") ? encodeURIComponent(stream) : stream;
const group = "billing";

function equal(found: unknown, expected: unknown): void {
    const [one, other] = [JSON.stringify(found), JSON.stringify(expected)];
    if (one !== other) throw new Error(`${one} is not ${other}`);
}

function entry(number: number, id = "*"): EntryInput {
    return { fields: { item: "äpfel", number, ripe: number > 1 }, id };
}

async function publishes(): Promise<void> {
    const one = await addEntries(inPath, entry(1));
    if (one.status !== 201) throw new Error(JSON.stringify(one.data));
    equal(typeof one.data.id, "string");
    const batch = await addEntryBatch(inPath, { entries: [entry(2.5)] });
    equal(batch.status === 201 && batch.data.count, 1);
    if (stream.startsWith("orval7/")) {
        // It sends a Blob as JSON.
        equal((await addEntryBatch(inPath, { entries: [entry(3), entry(3.5)] })).status, 201);
    } else {
        const lines = await addEntriesNdjson(inPath, new Blob(['{"item":"birnen","number":3}\n']));
        equal(lines.status === 201 && lines.data.count, 1);
        equal((await addRawEntry(inPath, new Blob(["3.5"]))).status, 201);
    }
    const many = await publish({ streams: { [stream]: [entry(4)] } });
    equal(many.status === 201 && many.data.streams[stream].count, 1);
}

async function works(): Promise<(string | undefined)[]> {
    equal((await ensureGroup(inPath, group, { start: "0" })).status, 201);
    const numbers: (string | undefined)[] = [];
    for (;;) {
        const read = await readGroup(inPath, group, "worker", { count: 2 });
        if (read.status !== 200) throw new Error(read.data.detail);
        const entries = read.data.entries;
        if (entries.length === 0) break;
        numbers.push(...entries.map((one) => one.fields?.number ?? one.fields?.data));
        const done = await ackEntries(inPath, group, { ids: entries.map((one) => one.id) });
        equal(done.status === 200 && done.data.acknowledged, entries.length);
    }
    const pending = await listPending(inPath, group);
    equal(pending.status === 200 && pending.data.count, 0);
    return numbers;
}

async function isRefused(): Promise<void> {
    const refused = await addEntries(inPath, entry(0, "1-1"));
    if (refused.status !== 409) throw new Error(`${refused.status}`);
    equal([refused.data.code, refused.data.retryable], ["id_not_increasing", false]);
}

/** What must not compile. */
export function refusedByTheCompiler(): void {
    // @ts-expect-error - a value is a string, a number or a boolean
    void addEntries(inPath, { fields: { item: {} } });
    // @ts-expect-error - an entry has fields
    void addEntries(inPath, { id: "1-1" });
    // @ts-expect-error - an acknowledgement names its entries
    void ackEntries(inPath, group, {});
}

async function main(): Promise<void> {
    await publishes();
    equal(await works(), ["1", "2.5", "3", "3.5", "4"]);
    await isRefused();
    console.log("all agree");
}

void main();
