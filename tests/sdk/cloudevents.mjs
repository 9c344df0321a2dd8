// Sends and reads CloudEvents with the npm package: node cloudevents.mjs URL

import { CloudEvent, HTTP } from "cloudevents";

const entries = `${process.argv[2]}/v1/streams/npm/entries`;
const events = [
  new CloudEvent({ id: "1", source: "/npm", type: "t.json", tenant: "acme", data: { a: [1, "ü"] } }),
  new CloudEvent({ id: "2", source: "/npm", type: "t.text", datacontenttype: "text/plain", data: "two words" }),
];

async function post({ headers, body }) {
  const answer = await fetch(entries, { method: "POST", headers, body });
  if (answer.status !== 201) throw new Error(await answer.text());
}

for (const event of events) {
  await post(HTTP.binary(event));
  await post(HTTP.structured(event));
}
const bodies = events.map((event) => HTTP.structured(event).body);
await post({ headers: { "content-type": "application/cloudevents-batch+json" }, body: `[${bodies.join(",")}]` });

const answer = await fetch(entries, { headers: { accept: "application/cloudevents-batch+json" } });
const headers = Object.fromEntries(answer.headers);
const found = HTTP.toEvent({ headers, body: await answer.text() });
// Each is valid by the schema of the specification.
console.log(JSON.stringify(found.map((event) => [event.validate(), event.id, event.type, event.tenant, event.data])));
