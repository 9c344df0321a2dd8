/* Rows in memory, and their way out of the page. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";
import { formatCsv, formatCurlPublish, formatCurlRead, formatNdjson } from "../../../app/console/live/export.js";
import { parseDeadLetter } from "../../../app/console/groups/dead_letter.js";
import { byConsumer, describeKept } from "../../../app/console/groups/holders.js";
import { Rows, makeEntryRow, makeNotice } from "../../../app/console/live/rows.js";

/** @param {number} n */
const row = (n, chars = 1) => makeEntryRow({ id: `5-${n}`, fields: { n: String(n) } }, chars);
const idsOf = (/** @type {Rows} */ rows) => [...rows].map((one) => (one.kind === "entry" ? one.id : one.text));

test("the ring keeps the newest rows, within both limits", () => {
  const rows = new Rows(3, 10);
  for (let n = 0; n < 5; n += 1) rows.push(row(n));
  assert.deepEqual(idsOf(rows), ["5-2", "5-3", "5-4"]);
  assert.equal(rows.dropped, 2);
  rows.push(row(5, 9));
  assert.deepEqual(idsOf(rows), ["5-4", "5-5"]);
  assert.equal(rows.chars, 10);
  rows.push(row(6, 50));
  assert.deepEqual(idsOf(rows), ["5-6"], "a single row fits, even if it is too large");
});

test("older rows enter at the front and push out the newest", () => {
  const rows = new Rows(4);
  for (let n = 2; n < 5; n += 1) rows.push(row(n));
  rows.unshift([row(0), row(1)]);
  assert.deepEqual(idsOf(rows), ["5-0", "5-1", "5-2", "5-3"]);
  assert.equal(rows.dropped, -2);
  assert.equal(rows.at(2)?.kind === "entry" && rows.at(2 - rows.dropped - 2)?.chars, 1);
  rows.clear();
  assert.deepEqual([rows.length, rows.chars, idsOf(rows)], [0, 0, []]);
  assert.equal(rows.findIndex(() => true), -1);
});

test("the entries of the rows are those that still have fields", () => {
  const rows = new Rows(9);
  rows.push(makeNotice("gap", "a gap"));
  rows.push(row(1));
  rows.push(makeEntryRow({ id: "5-2", fields: null }, 1));
  assert.deepEqual(rows.entries().map(({ id }) => id), ["5-1"]);
  assert.equal(rows.findIndex(({ kind }) => kind === "entry"), 1);
});

test("NDJSON holds every entry as the gateway returned it", () => {
  const entries = [{ id: "5-1", fields: { a: "line\nend" } }, { id: "5-2", fields: { a: "AP8=" }, encoding: "base64" }];
  assert.deepEqual(formatNdjson(entries).trimEnd().split("\n").map((line) => JSON.parse(line)), entries);
  assert.equal(formatNdjson([]), "");
});

test("CSV quotes the cells that need it, and no others", () => {
  const text = formatCsv([
    { id: "1700000000000-0", fields: { a: "plain", "b,c": 'say "hi"' } },
    { id: "1700000000000-1", fields: { a: "two\nlines", d: "" } },
  ]);
  assert.equal(text, [
    'id,time,encoding,a,"b,c",d',
    '1700000000000-0,2023-11-14T22:13:20.000Z,,plain,"say ""hi""",',
    '1700000000000-1,2023-11-14T22:13:20.000Z,,"two\nlines",,',
    "",
  ].join("\r\n"));
});

test("no CSV cell is a formula, and numbers stay numbers", () => {
  const values = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "-5", "+3.25", "-.5e10", "a=b", '=HYPERLINK("x")'];
  const fields = Object.fromEntries(values.map((value, n) => [`f${n}`, value]));
  const [head, line] = formatCsv([{ id: "5-1", fields: { ...fields, "=name": "x" } }]).split("\r\n");
  assert.ok(head?.endsWith(",'=name"));
  assert.equal(line, `5-1,1970-01-01T00:00:00.005Z,,'=1+1,'+cmd|' /C calc'!A0,'-2+3,'@SUM(A1),'\t=1,-5,+3.25,-.5e10,a=b,"'=HYPERLINK(""x"")",x`);
});

test("CSV keeps both values of a repeated field and limits its columns", () => {
  const twice = { id: "5-1", fields: { a: "2" }, pairs: /** @type {[string, string][]} */ ([["a", "1"], ["a", "2"]]) };
  assert.equal(formatCsv([twice]).split("\r\n")[1], "5-1,1970-01-01T00:00:00.005Z,,1,2");
  const many = Array.from({ length: 300 }, (_, n) => ({ id: `5-${n}`, fields: { [`f${n}`]: "v" } }));
  const lines = formatCsv(many).trimEnd().split("\r\n");
  assert.equal(lines[0]?.split(",").length, 3 + 256 + 1);
  assert.ok(lines[257]?.endsWith('"[[""f256"",""v""]]"'));
  assert.ok(formatCsv([{ id: "18446744073709551615-0", fields: {} }]).includes("18446744073709551615-0,,"));
});

test("a curl command quotes each argument as one shell word", () => {
  const entry = { id: "5-1", fields: { "it's": "$(touch /tmp/x) `id` \"q\" \\ \n!" } };
  const words = (/** @type {string} */ command) =>
    execFileSync("sh", ["-c", `printf '%s\\0' ${command}`], { encoding: "utf8" }).split("\0").slice(0, -1);
  assert.deepEqual(words(formatCurlRead("http://127.0.0.1:8080", "it's/here", "5-1")), ["curl", "-s", "http://127.0.0.1:8080/v1/streams/it's%2Fhere/entries/5-1"]);
  const publish = words(formatCurlPublish("http://127.0.0.1:8080", "a b", entry));
  assert.deepEqual(publish.slice(0, -1), ["curl", "-s", "http://127.0.0.1:8080/v1/streams/a%20b/entries", "-H", "Content-Type: application/json", "--data-raw"]);
  assert.deepEqual(JSON.parse(publish.at(-1) ?? ""), { fields: Object.entries(entry.fields) });
  const binary = words(formatCurlPublish("http://x", "s", { id: "5-1", fields: { a: "AP8=" }, encoding: "base64" }));
  assert.deepEqual(JSON.parse(binary.at(-1) ?? ""), { fields: [["a", "AP8="]], encoding: "base64" });
});

test("what was not done says who holds the entries by now", () => {
  /** @param {string} id @param {string | null} consumer */
  const pending = (id, consumer) => ({ id, consumer, idle_ms: 0, delivery_count: 1 });
  const rows = [pending("5-0", "b"), pending("5-1", null), pending("5-2", "c"), pending("5-3", "b")];
  assert.deepEqual([...byConsumer(rows)], [["b", ["5-0", "5-3"]], ["", ["5-1"]], ["c", ["5-2"]]]);
  // The last is not pending any more.
  assert.deepEqual(describeKept(["5-0", "5-1", "5-3", "5-9"], rows), ["2 entries are held by b since", "1 entry is given back since"]);
});

test("a dead letter is parsed, also if it is binary", () => {
  const fields = { task: "3", "weir-source": "tasks", "weir-id": "5-1", "weir-group": "team", "weir-consumer": "anna", "weir-deliveries": "2", "weir-reason": "no such city: Žilina" };
  const expected = { id: "9-0", source: "tasks", entryId: "5-1", group: "team", consumer: "anna", deliveries: "2", reason: "no such city: Žilina" };
  assert.deepEqual(parseDeadLetter({ id: "9-0", fields }), expected);
  const binary = Object.fromEntries(Object.entries(fields).map(([name, value]) => [name, Buffer.from(value).toString("base64")]));
  assert.deepEqual(parseDeadLetter({ id: "9-0", fields: binary, encoding: "base64" }), expected);
  const twice = { id: "9-0", fields, pairs: /** @type {[string, string][]} */ ([["weir-reason", "the first"], ...Object.entries(fields)]) };
  assert.equal(parseDeadLetter(twice).reason, "no such city: Žilina");
  assert.equal(parseDeadLetter({ id: "9-0", fields: {} }).reason, "");
});
