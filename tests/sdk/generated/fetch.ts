// What a worker does with a client made by openapi-generator for typescript-fetch; the gateway's URL is the argument. It
// stands beside the generated folder `weir`, and knows its functions by the names of the operations.
import { Configuration, EntriesApi, GroupsApi, ResponseError } from "./weir/index.js";
import type { EntryInput, Problem } from "./weir/index.js";

declare const process: { argv: string[] };

const configuration = new Configuration({ basePath: process.argv[2] });
const [entries, groups] = [new EntriesApi(configuration), new GroupsApi(configuration)];
const [stream, group] = ["fetch/orders eu", "billing"];

function equal(found: unknown, expected: unknown): void {
    const [one, other] = [JSON.stringify(found), JSON.stringify(expected)];
    if (one !== other) throw new Error(`${one} is not ${other}`);
}

function entry(number: number, id = "*"): EntryInput {
    return { fields: { item: "äpfel", number, ripe: number > 1 }, id };
}

async function publishes(): Promise<void> {
    const one = await entries.addEntries({ stream, entryInput: entry(1) });
    equal(typeof one.id, "string");
    const batch = await entries.addEntryBatch({ stream, entriesInput: { entries: [entry(2.5), entry(3)] } });
    equal(batch.count, 2);
}

async function works(): Promise<unknown[]> {
    equal((await groups.ensureGroup({ stream, group, ensuredGroup: { start: "0" } })).name, group);
    const numbers: unknown[] = [];
    for (;;) {
        const read = await groups.readGroup({ stream, group, consumer: "worker", groupReading: { count: 2 } });
        if (read.entries.length === 0) break;
        numbers.push(...read.entries.map((found) => found.fields?.number));
        const ids = read.entries.map((found) => found.id);
        equal((await groups.ackEntries({ stream, group, acknowledgement: { ids } })).acknowledged, ids.length);
    }
    return numbers;
}

async function isRefused(): Promise<void> {
    const refused = await entries.addEntries({ stream, entryInput: entry(0, "1-1") }).catch((error: unknown) => error);
    if (!(refused instanceof ResponseError)) throw new Error("it was taken");
    const problem = (await refused.response.json()) as Problem;
    equal([problem.status, problem.code], [409, "id_not_increasing"]);
}

/** What must not compile. */
export function refusedByTheCompiler(): void {
    // @ts-expect-error - an entry has fields
    void entries.addEntries({ stream, entryInput: { id: "1-1" } });
    // @ts-expect-error - a batch has entries
    void entries.addEntryBatch({ stream, entriesInput: {} });
}

await publishes();
equal(await works(), ["1", "2.5", "3"]);
await isRefused();
console.log("all agree");
