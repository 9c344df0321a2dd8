// Reads a stream from its first archived entry on, by pages and by a tail; prints the IDs that each saw, and what a tail
// and a page from `WEIR_EARLY` on learn of what the archive does not have.
const { Client } = await import(process.env.WEIR_CLIENT);
const count = Number(process.env.WEIR_COUNT);
const client = new Client({ url: process.env.WEIR_URL });
const paged = [];
for await (const entry of client.entries("orders", { pageCount: 3 })) paged.push(entry.id);
const tailed = [];
for await (const entry of client.tail("orders", { after: "0" })) {
  if (tailed.push(entry.id) === count) break;
}
const early = process.env.WEIR_EARLY;
const gaps = [(await client.readAfter("orders", early)).gap];
for await (const entry of client.tail("orders", { after: early, onGap: (gap) => gaps.push(gap) })) {
  if (entry.id === paged.at(-1)) break;
}
console.log(JSON.stringify({ paged, tailed, gaps: gaps.map((gap) => [gap.requested, gap.first_available]) }));
process.exit(0);
