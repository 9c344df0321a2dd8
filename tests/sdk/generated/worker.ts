// What a worker does with openapi-fetch and the types that openapi-typescript makes; the gateway's URL is the
// argument. It stands beside the generated file `weir.d.ts` and knows paths, members and nothing else.
import createClient from "openapi-fetch";
import type { components, paths } from "./weir.js";

type Entry = components["schemas"]["DeliveredEntry"];

declare const process: { argv: string[] };

const { GET, POST, PUT } = createClient<paths>({ baseUrl: process.argv[2] });
const stream = "fetched/orders eu";
const group = "billing";
const consumer = "worker 1";

function equal(found: unknown, expected: unknown): void {
    const [one, other] = [JSON.stringify(found), JSON.stringify(expected)];
    if (one !== other) throw new Error(`${one} is not ${other}`);
}

/** The answer of a call that was not refused. */
function taken<T>(answer: { data?: T; error?: unknown }): T {
    if (answer.data === undefined) throw new Error(JSON.stringify(answer.error));
    return answer.data;
}

async function publishes(): Promise<void> {
    const path = "/v1/streams/{stream}/entries";
    const one = await POST(path, { params: { path: { stream } }, body: { fields: { item: "äpfel", number: 1.5, ripe: true } } });
    equal(taken(one).duplicate, false);
    const entries = [{ fields: { item: "birnen" } }, { fields: { item: "quitten" } }];
    const batch = await POST("/v1/streams/{stream}/entries/batch", { params: { path: { stream } }, body: { entries } });
    equal(taken(batch).count, 2);
    const many = await POST("/v1/publish", { body: { streams: { [stream]: entries } } });
    equal(taken(many).streams[stream]?.count, 2);
}

async function reads(count: number): Promise<Entry[]> {
    const path = "/v1/streams/{stream}/groups/{group}/consumers/{consumer}/read";
    const read = await POST(path, { params: { path: { stream, group, consumer } }, body: { count, wait: 100 } });
    return taken(read).entries;
}

async function works(): Promise<string[]> {
    const path = "/v1/streams/{stream}/groups/{group}/ack";
    const items: string[] = [];
    for (;;) {
        const entries = await reads(2);
        if (entries.length === 0) return items;
        items.push(...entries.map((entry) => entry.fields?.item ?? "gone"));
        const ids = entries.map((entry) => entry.id);
        const done = await POST(path, { params: { path: { stream, group } }, body: { ids } });
        equal(taken(done).acknowledged, ids.length);
    }
}

async function isRefused(): Promise<void> {
    const path = "/v1/streams/{stream}/groups/{group}";
    const { error, response } = await GET(path, { params: { path: { stream, group: "nobody" } } });
    equal([response.status, error?.code, error?.retryable], [404, "no_group", false]);
    // @ts-expect-error - the codes are an enum, and this is none of them
    if (error?.code === "no_such_code") throw new Error();
}

/** What must not compile. */
export function refusedByTheCompiler(): void {
    // @ts-expect-error - a value is a string, a number or a boolean
    void POST("/v1/publish", { body: { streams: { [stream]: [{ fields: { item: {} } }] } } });
    // @ts-expect-error - an acknowledgement names its entries
    void POST("/v1/streams/{stream}/groups/{group}/ack", { params: { path: { stream, group } }, body: {} });
    // @ts-expect-error - there is no such path
    void GET("/v1/stream");
}

async function main(): Promise<void> {
    await publishes();
    const path = "/v1/streams/{stream}/groups/{group}";
    const made = await PUT(path, { params: { path: { stream, group } }, body: { start: "0" } });
    equal(taken(made).name, group);
    equal(await works(), ["äpfel", "birnen", "quitten", "birnen", "quitten"]);
    await isRefused();
    console.log("all agree");
}

void main();
