// What a worker does with a client made by swagger-typescript-api; the gateway's URL is the argument. It stands beside
// the generated file `weir.ts`, and knows its functions by the names of the operations, and neither paths nor headers.
import { Api } from "./weir.js";
import type { EntryInput, Problem } from "./weir.js";

declare const process: { argv: string[] };

const { v1 } = new Api({ baseUrl: process.argv[2] });
const stream = "swagger/orders eu";
// This generator writes names into paths as they are.
const inPath = encodeURIComponent(stream);
const group = "billing";

function equal(found: unknown, expected: unknown): void {
    const [one, other] = [JSON.stringify(found), JSON.stringify(expected)];
    if (one !== other) throw new Error(`${one} is not ${other}`);
}

function entry(number: number, id = "*"): EntryInput {
    return { fields: { item: "äpfel", number, ripe: number > 1 }, id };
}

async function publishes(): Promise<void> {
    const one = await v1.addEntries(inPath, entry(1));
    equal([one.status, typeof one.data.id], [201, "string"]);
    const batch = await v1.addEntryBatch(inPath, { entries: [entry(2.5), entry(3)] });
    equal(batch.data.count, 2);
    const many = await v1.publish({ streams: { [stream]: [entry(4)] } });
    equal(many.data.streams[stream].count, 1);
}

async function works(): Promise<(string | undefined)[]> {
    equal((await v1.ensureGroup(inPath, group, { start: "0" })).data.name, group);
    const numbers: (string | undefined)[] = [];
    for (;;) {
        const { entries } = (await v1.readGroup(inPath, group, "worker", { count: 3 })).data;
        if (entries.length === 0) break;
        numbers.push(...entries.map((one) => one.fields?.number));
        const done = await v1.ackEntries(inPath, group, { ids: entries.map((one) => one.id) });
        equal(done.data.acknowledged, entries.length);
    }
    equal((await v1.listPending(inPath, group)).data.count, 0);
    return numbers;
}

async function isRefused(): Promise<void> {
    const refused = await v1.addEntries(inPath, entry(0, "1-1")).catch((answer: { error: Problem }) => answer);
    const problem = refused.error as Problem;
    equal([problem.status, problem.code, problem.retryable], [409, "id_not_increasing", false]);
}

/** What must not compile. */
export function refusedByTheCompiler(): void {
    // @ts-expect-error - a value is a string, a number or a boolean
    void v1.addEntries(inPath, { fields: { item: {} } });
    // @ts-expect-error - an entry has fields
    void v1.addEntries(inPath, { id: "1-1" });
    // @ts-expect-error - an acknowledgement names its entries
    void v1.ackEntries(inPath, group, {});
}

async function main(): Promise<void> {
    await publishes();
    equal(await works(), ["1", "2.5", "3", "4"]);
    await isRefused();
    console.log("all agree");
}

void main();
