// A worker of a group with a client of Node: ioredis or node-redis (`redis`).
// Usage: node worker.mjs NODE_MODULES LIBRARY PROTOCOL PORT. A line of JSON is a call, [name, argument …]; its result
// is a line as well. It ends with its input.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [modules, library, protocol, port] = process.argv.slice(2);
const load = createRequire(`${modules}/x.js`);
const GROUP = "packers";
const FIELD = "item";
const READ_MAX = 2;

function withIoredis() {
  const { Redis } = load("ioredis");
  const client = new Redis({ port: Number(port), host: "127.0.0.1", protocol: Number(protocol) });
  const pairs = (rows) => rows.map(([id, fields]) => [id, fields[1]]);
  return {
    publish: (stream, item) => client.xadd(stream, "*", FIELD, item),
    createGroup: (stream) => client.xgroup("CREATE", stream, GROUP, "0"),
    read: async (stream, consumer, start, blockMs) => {
      const block = blockMs === null ? [] : ["BLOCK", blockMs];
      const words = ["GROUP", GROUP, consumer, "COUNT", READ_MAX, ...block, "STREAMS", stream, start];
      const found = (await client.xreadgroup(...words)) ?? [];
      const streams = Array.isArray(found) ? Object.fromEntries(found) : found;
      return pairs(streams[stream] ?? []);
    },
    claim: async (stream, consumer) => pairs((await client.xautoclaim(stream, GROUP, consumer, 0, "0-0"))[1]),
    acknowledge: (stream, id) => client.xack(stream, GROUP, id),
    pending: async (stream) => (await client.xpending(stream, GROUP))[0],
  };
}

async function withNodeRedis() {
  const { createClient } = load("redis");
  const client = createClient({ socket: { host: "127.0.0.1", port: Number(port) }, RESP: Number(protocol) });
  await client.connect();
  const pairs = (messages) => messages.map(({ id, message }) => [id, message[FIELD]]);
  return {
    publish: (stream, item) => client.xAdd(stream, "*", { [FIELD]: item }),
    createGroup: (stream) => client.xGroupCreate(stream, GROUP, "0"),
    read: async (stream, consumer, start, blockMs) => {
      const options = { COUNT: READ_MAX, ...(blockMs === null ? {} : { BLOCK: blockMs }) };
      const found = await client.xReadGroup(GROUP, consumer, { key: stream, id: start }, options);
      return pairs(found?.[0]?.messages ?? []);
    },
    claim: async (stream, consumer) => pairs((await client.xAutoClaim(stream, GROUP, consumer, 0, "0-0")).messages),
    acknowledge: (stream, id) => client.xAck(stream, GROUP, id),
    pending: async (stream) => (await client.xPending(stream, GROUP)).pending,
  };
}

const worker = await (library === "ioredis" ? withIoredis() : withNodeRedis());
for await (const line of createInterface({ input: process.stdin })) {
  const [name, ...given] = JSON.parse(line);
  process.stdout.write(`${JSON.stringify(await worker[name](...given))}\n`);
}
process.exit();
