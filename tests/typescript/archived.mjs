// Reads a stream from its first archived entry on, by pages and by a tail; prints the IDs that each saw.
const { Client } = await import(process.env.WEIR_CLIENT);
const count = Number(process.env.WEIR_COUNT);
const client = new Client({ url: process.env.WEIR_URL });
const paged = [];
for await (const entry of client.entries("orders", { pageCount: 3 })) paged.push(entry.id);
const tailed = [];
for await (const entry of client.tail("orders", { after: "0" })) {
  if (tailed.push(entry.id) === count) break;
}
console.log(JSON.stringify({ paged, tailed }));
process.exit(0);
