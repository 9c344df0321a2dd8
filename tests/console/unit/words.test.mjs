/* What people type and read: filters, places, figures, policies, addresses. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { parse } from "../../../app/console/live/filter.js";
import { compareIds } from "../../../app/console/shared/entry.js";
import { bytes, clock, duration, plural, rate, short } from "../../../app/console/shared/format.js";
import { here, href } from "../../../app/console/shared/address.js";
import { parseJump } from "../../../app/console/live/jump.js";
import { parsePolicy, policyFields } from "../../../app/console/groups/policy.js";
import { figuresOf } from "../../../app/console/overview/status.js";

const entry = { id: "1700000000000-7", fields: { city: "Graz", total: "101", note: "two words" } };

test("a filter takes words, fields, numbers and their opposites, all of which have to hold", () => {
  const kept = ["", "graz", "CITY", "city:ra", "city=Graz", "total>100", "total>99", "total<1000", "total>=99", "total<=1000", "total>=101", "total<=101", "total<102", '"two words"', "-linz", "graz total>100", "1700000000000-7", 'note="two words"', "-city=graz"];
  const left = ["linz", "city=graz", "city:linz", "total>101", "total<101", "total>=102", "total<=100", '"words two"', "-graz", "graz linz", "town:Graz", "-total>100"];
  for (const text of kept) assert.equal(parse(text)?.(entry) ?? true, true, text);
  for (const text of left) assert.equal(parse(text)?.(entry) ?? true, false, text);
});

test("a filter sees both values of a field that an entry has twice", () => {
  const twice = { id: "5-1", fields: { a: "2" }, pairs: /** @type {[string, string][]} */ ([["a", "1"], ["a", "2"]]) };
  assert.ok(parse("a=1")?.(twice));
  assert.ok(parse("a=2")?.(twice));
});

test("IDs are compared as two numbers of any length", () => {
  const ids = ["0-1", "5-0", "5-1", "5-2", "5-10", "9-99", "10-0", "99-5", "100-4", "18446744073709551614-0", "18446744073709551615-18446744073709551615"];
  for (const [at, id] of ids.entries()) {
    for (const [other, than] of ids.entries()) assert.equal(Math.sign(compareIds(id, than)), Math.sign(at - other), `${id} ${than}`);
  }
});

test("a place is an ID, a time of day, a date or a while ago", () => {
  const nowMs = new Date(2026, 0, 31, 12, 30, 5, 250).getTime();
  const at = (/** @type {string} */ text) => parseJump(text, nowMs);
  assert.equal(at("5-1"), "5-1");
  assert.equal(at(" 5m "), String(nowMs - 300_000));
  assert.equal(at("-1.5 h ago"), String(nowMs - 5_400_000));
  assert.equal(at("250ms"), String(nowMs - 250));
  assert.equal(at("2d"), String(nowMs - 172_800_000));
  assert.equal(at("11:05"), String(new Date(2026, 0, 31, 11, 5).getTime()));
  assert.equal(at("11:05:06.007"), String(new Date(2026, 0, 31, 11, 5, 6, 7).getTime()));
  assert.equal(at("2026-01-30 10:00"), String(new Date(2026, 0, 30, 10).getTime()));
  for (const nothing of ["", "25 o'clock", "soon", "5-", "1-2-3", "2026-99-99"]) assert.equal(at(nothing), null, nothing);
});

test("figures are short and never say more than they know", () => {
  assert.deepEqual([0, 999, 1_000, 9_999, 10_000, 12_345_678].map(short), ["0", "999", "1,000", "9,999", "10K", "12.3M"]);
  assert.deepEqual([null, 0, 0.25, 9.96, 10, 1_154.4].map(rate), ["–", "0/s", "0.3/s", "10.0/s", "10/s", "1,154/s"]);
  assert.deepEqual([0, 1_023, 1_024, 10_240, 1_048_576, 3.5 * 2 ** 40].map(bytes), ["0 B", "1023 B", "1.0 KiB", "10.0 KiB", "1.0 MiB", "3.5 TiB"]);
  assert.deepEqual([null, 0.25, 12.4, 999, 1_000, 59_400, 60_000, 61_000, 3_600_000, 90_000_000].map(duration), ["–", "0.3 ms", "12 ms", "999 ms", "1.0 s", "59 s", "1 min", "1 min 1 s", "1 h", "1 d 1 h"]);
  assert.deepEqual([plural(1, "entry", "entries"), plural(2_000, "entry", "entries"), plural(0, "row")], ["1 entry", "2,000 entries", "0 rows"]);
  assert.equal(clock(Number.NaN), "");
  assert.match(clock(1_700_000_000_007), /^\d\d:\d\d:\d\d\.007$/);
});

test("a policy comes back from its fields as it was, in milliseconds", () => {
  for (const one of [
    { dead_letter: null, ack_timeout_ms: null, consumer_timeout_ms: null },
    { dead_letter: { stream: "dead", max_deliveries: 3 }, ack_timeout_ms: 60_000, consumer_timeout_ms: 1_800_500 },
    { dead_letter: { stream: "dead", max_deliveries: null }, ack_timeout_ms: 1, consumer_timeout_ms: null },
  ]) {
    assert.deepEqual(parsePolicy(Object.fromEntries(policyFields(one).map(({ name, value = "" }) => [name, value]))), one);
  }
});

test("an address holds any name, and what is no address is the start", () => {
  for (const name of ["a", "a/b?c#d", "ä &%", "..", "%2F", "a:b.c-d"]) {
    assert.deepEqual(here(href(name, "groups", name)), { stream: name, view: "groups", group: name });
  }
  assert.deepEqual(here("#/orders/other"), { stream: "orders", view: "live", group: "" });
  for (const nothing of ["", "#", "#/", "#/%E0%A4%A"]) assert.equal(here(nothing).stream, "");
});

test("a gateway's status is figures and what is wrong; one that says less shows less", () => {
  const status = {
    uptime_ms: 61_000,
    durability: { fsync: "everysec", answers: "os" },
    log: { bytes: 2_048, unsynced_bytes: 10, failure: null },
    memory: { used_bytes: 1_024, bytes_max: 1_048_576, full: false },
    connections: { open: 7, following: 2, waiting_reads: 1, failed: 0 },
  };
  const { figures, problem } = figuresOf(status);
  assert.deepEqual(figures, [
    ["Memory", "1.0 KiB of 1.0 MiB"], ["Log", "2.0 KiB"], ["Not synced yet", "10 B"], ["Sync", "everysec"],
    ["Connections", "7"], ["Following or waiting", "2"], ["Up for", "1 min 1 s"],
  ]);
  assert.equal(problem, "");
  const failed = figuresOf({ log: { ...status.log, failure: "no space left" }, memory: { ...status.memory, bytes_max: null, full: true } });
  assert.match(failed.problem, /no space left.*memory is full/);
  assert.deepEqual(failed.figures[0], ["Memory", "1.0 KiB"]);
  assert.deepEqual(figuresOf(null), { figures: [], problem: "" });
});
