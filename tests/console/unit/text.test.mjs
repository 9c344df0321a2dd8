/* Text that people type and read: filters, jumps, figures, policies, limits, addresses. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { parseFilter } from "../../../app/console/live/filter.js";
import { compareIds } from "../../../app/console/shared/entry.js";
import { formatBytes, formatDuration, formatRate, formatShort, formatTime, formatWhen, pluralize, showHidden } from "../../../app/console/shared/format.js";
import { formatMs, formatSize, parseMs, parseSize } from "../../../app/console/shared/fields.js";
import { formatAddress, parseAddress } from "../../../app/console/shared/address.js";
import { parseJump } from "../../../app/console/live/jump.js";
import { describePolicy, parsePolicy, policyFields } from "../../../app/console/groups/policy.js";
import { UNLIMITED, describeHolder, describeRetention, parseRetention, retentionFields } from "../../../app/console/shared/retention.js";
import { describeOutage, describeStatus } from "../../../app/console/overview/status.js";

const entry = { id: "1700000000000-7", fields: { city: "Graz", total: "101", note: "two words" } };

test("a filter takes words, fields, numbers and negations, all of which must match", () => {
  const kept = ["", "graz", "CITY", "city:ra", "city=Graz", "total>100", "total>99", "total<1000", "total>=99", "total<=1000", "total>=101", "total<=101", "total<102", '"two words"', "-linz", "graz total>100", "1700000000000-7", 'note="two words"', "-city=graz"];
  const left = ["linz", "city=graz", "city:linz", "total>101", "total<101", "total>=102", "total<=100", '"words two"', "-graz", "graz linz", "town:Graz", "-total>100"];
  for (const text of kept) assert.equal(parseFilter(text)?.(entry) ?? true, true, text);
  for (const text of left) assert.equal(parseFilter(text)?.(entry) ?? true, false, text);
});

test("a filter matches both values of a repeated field", () => {
  const twice = { id: "5-1", fields: { a: "2" }, pairs: /** @type {[string, string][]} */ ([["a", "1"], ["a", "2"]]) };
  assert.ok(parseFilter("a=1")?.(twice));
  assert.ok(parseFilter("a=2")?.(twice));
});

test("a gateway that cannot serve says why; one whose log failed still reads", () => {
  assert.deepEqual(["ready", "storage_failed"].map((status) => describeOutage({ status })), ["", ""]);
  assert.equal(describeOutage({ status: "backend_unavailable" }), "the backend does not answer");
  assert.equal(describeOutage({ status: "unavailable" }), "the gateway cannot serve now");
});

test("hidden characters have codes, and what scripts and emoji are made of stays", () => {
  const hidden = ["\0", "\b", "\u001b", "\u007f", "\u0085", "\u00ad", "\u061c", "\u200b", "\u200e", "\u200f", "\u2028", "\u2029", "\u202a", "\u202e", "\u2060", "\u2066", "\u2069", "\ufeff", "\u{e0041}"];
  for (const one of hidden) assert.match(showHidden(`a${one}b${one}`), /^a(\[U\+[0-9A-F]{4,6}\])b\1$/);
  assert.equal(showHidden("\u202egpj.exe"), "[U+202E]gpj.exe");
  const seen = ["", "a b", "a\tb\r\nc", "שלום", "سلام", "نامه\u200cای", "👩\u200d💻", "e\u0301", "\u00a0", "U+202E"];
  for (const one of seen) assert.equal(showHidden(one), one);
});

test("IDs compare as two numbers of any length", () => {
  const ids = ["0-1", "5-0", "5-1", "5-2", "5-10", "9-99", "10-0", "99-5", "100-4", "18446744073709551614-0", "18446744073709551615-18446744073709551615"];
  for (const [at, id] of ids.entries()) {
    for (const [other, than] of ids.entries()) assert.equal(Math.sign(compareIds(id, than)), Math.sign(at - other), `${id} ${than}`);
  }
});

test("a jump takes an ID, a time of day, a date or a time ago", () => {
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

test("figures are short and no more precise than their source", () => {
  assert.deepEqual([0, 999, 1_000, 9_999, 10_000, 12_345_678].map(formatShort), ["0", "999", "1,000", "9,999", "10K", "12.3M"]);
  assert.deepEqual([null, 0, 0.25, 9.96, 10, 1_154.4].map(formatRate), ["–", "0/s", "0.3/s", "10.0/s", "10/s", "1,154/s"]);
  assert.deepEqual([0, 1_023, 1_024, 10_240, 1_048_576, 3.5 * 2 ** 40].map(formatBytes), ["0 B", "1023 B", "1.0 KiB", "10.0 KiB", "1.0 MiB", "3.5 TiB"]);
  assert.deepEqual([null, 0.25, 12.4, 999, 1_000, 59_400, 60_000, 61_000, 3_600_000, 90_000_000].map(formatDuration), ["–", "0.3 ms", "12 ms", "999 ms", "1.0 s", "59 s", "1 min", "1 min 1 s", "1 h", "1 d 1 h"]);
  assert.deepEqual([pluralize(1, "entry", "entries"), pluralize(2_000, "entry", "entries"), pluralize(0, "row")], ["1 entry", "2,000 entries", "0 rows"]);
  assert.equal(formatTime(Number.NaN), "");
  assert.match(formatTime(1_700_000_000_007), /^\d\d:\d\d:\d\d\.007$/);
});

test("a time of another day has its date", () => {
  const now = new Date(2026, 10, 23, 13, 39, 24, 320).getTime();
  const at = (/** @type {number[]} */ ...parts) => formatWhen(new Date(parts[0] ?? 0, parts[1] ?? 0, ...parts.slice(2)).getTime(), now);
  assert.deepEqual(
    [at(2026, 10, 23, 0, 0, 0, 1), at(2026, 10, 22, 23, 59, 59, 999), at(2025, 10, 23, 13, 39, 24), formatWhen(Number.NaN, now)],
    ["00:00:00.001", "11-22 23:59:59", "2025-11-23 13:39", ""],
  );
});

test("durations and sizes stand in fields as people write them", () => {
  assert.deepEqual([null, 0, 1_500, 90_000, 300_000, 604_800_000].map(formatMs), ["", "0", "1500ms", "90s", "5m", "7d"]);
  assert.deepEqual(["", "0", "1500ms", " 7d "].map(parseMs), [null, 0, 1_500, 604_800_000]);
  assert.deepEqual([null, 0, 1_000, 65_536, 2 ** 31].map(formatSize), ["", "0", "1000", "64kb", "2gb"]);
  assert.deepEqual(["", "1000", "64k", "128MiB", "2gb"].map(parseSize), [null, 1_000, 65_536, 2 ** 27, 2 ** 31]);
  for (const wrong of ["5", "5 x", "1m30s", "-1s"]) assert.throws(() => parseMs(wrong), /no duration such as 250ms/);
  for (const wrong of ["1b", "1.5g", "x"]) assert.throws(() => parseSize(wrong), /no size such as 64kb/);
});

test("a policy survives the way through its fields, in milliseconds", () => {
  for (const one of [
    { dead_letter: null, ack_timeout_ms: null, consumer_timeout_ms: null, max_age_ms: null, ordered_by: null, in_flight_per_key: 1 },
    { dead_letter: { stream: "dead", max_deliveries: 3 }, ack_timeout_ms: 60_000, consumer_timeout_ms: 1_800_500, max_age_ms: null, ordered_by: "user", in_flight_per_key: 1 },
    { dead_letter: { stream: "dead", max_deliveries: null }, ack_timeout_ms: 1, consumer_timeout_ms: null, max_age_ms: 90_000, ordered_by: "user", in_flight_per_key: 3 },
  ]) {
    assert.deepEqual(parsePolicy(Object.fromEntries(policyFields(one).map(({ name, value = "" }) => [name, value]))), one);
  }
});

test("limits survive the way through their fields, and are described", () => {
  for (const one of [UNLIMITED, { max_len: 0, max_age_ms: 1_500, max_bytes: 2_048, keep_unacknowledged: true, keep_unarchived: false }]) {
    assert.deepEqual(parseRetention(Object.fromEntries(retentionFields(one).map(({ name, value = "" }) => [name, value]))), one);
  }
  assert.equal(describeRetention(UNLIMITED), "");
  assert.deepEqual([undefined, "no group", { group: "g", id: "1-0" }].map(describeHolder), ["", "keeps all until it has a group", "keeps all until g has acknowledged 1-0"]);
  assert.equal(describeRetention({ max_len: 1, max_age_ms: 3_600_000, max_bytes: 2_048 }), "keeps at most 1 entry, 1 h, 2.0 KiB");
});

test("a policy is described by what it does", () => {
  assert.equal(describePolicy({ dead_letter: null, ack_timeout_ms: null, consumer_timeout_ms: null, max_age_ms: null }), "No dead-letter stream.");
  assert.match(describePolicy({ dead_letter: { stream: "dead", max_deliveries: 1 }, ack_timeout_ms: 1, consumer_timeout_ms: 2, max_age_ms: 60_000 }), /^After 1 delivery an entry moves to dead\. .*1 ms.*older than 1 min.*2 ms/);
  assert.match(describePolicy({ dead_letter: null, ack_timeout_ms: null, consumer_timeout_ms: null, max_age_ms: null, paused: true }), /^Paused: /);
  const ordered = { dead_letter: null, ack_timeout_ms: null, consumer_timeout_ms: null, max_age_ms: null, ordered_by: "user" };
  assert.match(describePolicy({ ...ordered, in_flight_per_key: 1 }), /At most 1 entry with the same user is in flight\./);
  assert.match(describePolicy({ ...ordered, in_flight_per_key: 2 }), /At most 2 entries with the same user are in flight\./);
  assert.match(describePolicy({ ...ordered, ordered_by: "*", in_flight_per_key: 1 }), /At most 1 entry is in flight\./);
});

test("an address holds any name; an invalid address is the overview", () => {
  for (const name of ["a", "a/b?c#d", "ä &%", "..", "%2F", "a:b.c-d"]) {
    assert.deepEqual(parseAddress(formatAddress(name, "groups", name)), { stream: name, view: "groups", group: name });
  }
  assert.deepEqual(parseAddress("#/orders/other"), { stream: "orders", view: "live", group: "" });
  for (const nothing of ["", "#", "#/", "#/%E0%A4%A"]) assert.equal(parseAddress(nothing).stream, "");
});

test("a status becomes figures and problems; a status with fewer members shows fewer figures", () => {
  const status = {
    uptime_ms: 61_000,
    durability: { fsync: "everysec", answers: "os" },
    log: { bytes: 2_048, unsynced_bytes: 10, failure: null, stored_bytes: 4_096 },
    memory: { used_bytes: 1_024, bytes_max: 1_048_576, full: false },
    connections: { open: 7, following: 2, waiting_reads: 1, failed: 0 },
  };
  const { figures, problem } = describeStatus(status);
  assert.deepEqual(figures, [
    ["Memory", "1.0 KiB of 1.0 MiB"], ["Log", "2.0 KiB"], ["Cold entries on disk", "4.0 KiB"], ["Not yet synced", "10 B"], ["Sync", "everysec"],
    ["Connections", "7"], ["Live readers", "2"], ["Uptime", "1 min 1 s"],
  ]);
  assert.equal(problem, "");
  const failed = describeStatus({ log: { ...status.log, failure: "no space left" }, memory: { ...status.memory, bytes_max: null, full: true } });
  assert.match(failed.problem, /no space left.*Memory is full/);
  assert.deepEqual(failed.figures[0], ["Memory", "1.0 KiB"]);
  const over = describeStatus({ backend: "Valkey 9.1.2", log: null, durability: { fsync: null, answers: "replicated:1" } });
  assert.deepEqual(over.figures, [["Backend", "Valkey 9.1.2"], ["Promise", "replicated:1"]]);
  assert.equal(describeStatus(status, ["disk_full", "storing_failed", "backup_failed"]).problem, "An operator is needed: the disk is full, so publishing fails; cold entries cannot be stored, so memory fills; backup_failed.");
  assert.match(describeStatus({ status: "backend_unavailable", log: null }).problem, /^The backend does not answer/);
  assert.deepEqual(describeStatus(null), { figures: [], problem: "" });
});
