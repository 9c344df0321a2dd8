// A worker and a tail that see 150 entries while the gateway is killed and started again; prints what they saw.
const { Client, Worker } = await import(process.env.WEIR_CLIENT);
const webSocket = (await import(process.env.WEIR_WS)).WebSocket;
const url = process.env.WEIR_URL;
const count = 150;
const client = new Client({ url });
const done = [];
const tailed = [];

const worker = new Worker(url, { stream: "s", group: "g", consumer: "c", webSocket, via: process.env.WEIR_VIA, credit: 10 });
const working = worker.run(async ({ entry }) => {
  await new Promise((resolve) => setTimeout(resolve, 1));
  done.push(Number(entry.fields.n));
  if (done.length >= count) setTimeout(() => worker.stop(), 500);
}, 4);
const tailing = (async () => {
  for await (const entry of client.tail("s", { after: "0" })) {
    if (tailed.push(Number(entry.fields.n)) === count) return;
  }
})();
for (let n = 0; n < count; n++) {
  await client.publish("s", { n });
  if (n === 50 || n === 100) console.log("kill");
}
await Promise.all([working, tailing]);
const info = await client.group("s", "g").info();
console.log(JSON.stringify({ done, tailed, pending: info.pending }));
