import assert from "node:assert/strict";
import { test } from "node:test";
import { Connection } from "../../../app/console/shared/connection.js";
import { Gateway } from "./gateway.mjs";

/** A connection that is open, and somebody who follows. @param {string} after @param {number} credit */
function following(after = "5-0", credit = 10) {
  const gateway = new Gateway();
  const connection = new Connection("ws://gateway/v1/ws", gateway.ground);
  connection.open();
  gateway.socket.accept();
  /** @type {any[]} */
  const seen = [];
  const note = (/** @type {string} */ what) => (/** @type {any[]} */ ...rest) => seen.push([what, ...rest]);
  const follower = {
    entries: (/** @type {{id: string}[]} */ entries) => seen.push(...entries.map(({ id }) => id)),
    gap: note("gap"), caughtUp: note("caught up"), paused: note("paused"), revoked: note("revoked"), resumed: note("resumed"), failed: note("failed"),
  };
  const one = connection.follow("orders", after, credit, follower);
  return { gateway, connection, one, seen };
}

test("after a break it goes on behind the last entry that came, with the credit that is left", () => {
  const { gateway, connection, one, seen } = following();
  for (const id of ["5-1", "5-2"]) gateway.publish(id);
  gateway.socket.lose(1006);
  gateway.entries.push({ id: "5-3", fields: {} });
  gateway.nowMs += 20_000;
  connection.watch();
  gateway.socket.accept();
  assert.deepEqual(gateway.heard.filter(({ op }) => op === "subscribe").map(({ streams, credit }) => [streams, credit]), [
    [{ orders: "5-0" }, 10],
    [{ orders: "5-2" }, 8],
  ]);
  assert.deepEqual(seen, ["5-1", "5-2", ["resumed", "5-2", 20_000], "5-3"]);
  assert.equal(one.cursor, "5-3");
});

test("what came is taken off the credit, what is granted is added, on both sides alike", () => {
  const { gateway, one } = following("5-0", 2);
  for (const id of ["5-1", "5-2", "5-3"]) gateway.publish(id);
  assert.equal(one.credit, 0);
  one.grant(5);
  assert.equal(one.credit, 4);
  assert.equal(gateway.subscriptions.get(one.sub)?.credit, 4);
});

test("what waited for the subscription, for credit or for a connection was not pushed at once", () => {
  const { gateway, connection, one } = following("5-0", 1);
  const beganMs = gateway.nowMs;
  assert.equal(one.openSinceMs, beganMs);
  gateway.nowMs += 100;
  one.grant(1);
  assert.equal(one.openSinceMs, beganMs, "there was credit all the time");
  for (const id of ["5-1", "5-2"]) gateway.publish(id);
  gateway.nowMs += 100;
  one.grant(1);
  assert.equal(one.openSinceMs, beganMs + 200);
  gateway.socket.lose(1006);
  gateway.nowMs += 20_000;
  connection.watch();
  gateway.socket.accept();
  assert.equal(one.openSinceMs, beganMs + 20_200);
});

test("it waits longer each time, half of it by chance", () => {
  const waits = (/** @type {number} */ chance) => {
    const { gateway, connection } = following();
    gateway.chance = chance;
    return Array.from({ length: 8 }, () => {
      gateway.socket.lose(1006);
      const waitMs = connection.state.retryAtMs - gateway.nowMs;
      gateway.nowMs += waitMs - 1;
      connection.watch();
      assert.equal(connection.state.phase, "waiting");
      gateway.nowMs += 1;
      connection.watch();
      assert.equal(connection.state.phase, "connecting");
      return waitMs;
    });
  };
  assert.deepEqual(waits(0), [250, 500, 1_000, 2_000, 4_000, 5_000, 5_000, 5_000]);
  assert.deepEqual(waits(1), [500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000, 10_000]);
});

test("a connection on which nothing is heard for three heartbeats is given up", () => {
  const { gateway, connection } = following();
  gateway.nowMs += 45_000;
  connection.watch();
  assert.equal(connection.state.phase, "open");
  gateway.nowMs += 1;
  connection.watch();
  assert.equal(connection.state.phase, "waiting");
  assert.match(connection.state.reason, /three heartbeats/);
  assert.equal(gateway.sockets[0]?.readyState, 3, "closed on our side");
});

test("what is heard keeps it alive, and it asks three times a heartbeat", () => {
  const { gateway, connection } = following();
  for (let s = 0; s < 120; s += 1) {
    gateway.nowMs += 1_000;
    connection.watch();
    if (s % 15 === 0) gateway.socket.push({ op: "pong" });
  }
  assert.equal(connection.state.phase, "open");
  assert.equal(gateway.heard.filter(({ op }) => op === "ping").length, 20);
});

test("a gateway that wants to be left is left when it says, and found again", () => {
  const { gateway, connection } = following();
  gateway.socket.push({ op: "goaway", after_ms: 700 });
  gateway.nowMs += 699;
  connection.watch();
  assert.equal(connection.state.phase, "open");
  gateway.nowMs += 1;
  connection.watch();
  assert.equal(connection.state.phase, "waiting");
  assert.equal(connection.state.reason, "the gateway is stopping");
});

test("a refusal is not tried again by itself, only where somebody asks", () => {
  const { gateway, connection } = following();
  gateway.socket.lose(4500);
  gateway.nowMs += 3_600_000;
  connection.watch();
  assert.equal(connection.state.phase, "refused");
  connection.retry();
  assert.equal(connection.state.phase, "connecting");
});

test("the time away counts from the first loss, and its reason stays", () => {
  const { gateway, connection } = following();
  const lostAtMs = gateway.nowMs;
  gateway.socket.lose(1012);
  for (let tries = 0; tries < 3; tries += 1) {
    gateway.nowMs += 20_000;
    connection.watch();
    gateway.socket.lose(1006);
  }
  assert.equal(connection.state.lostAtMs, lostAtMs);
  assert.equal(connection.state.reason, "the gateway restarts");
});

test("what was stopped gets nothing more, and the gateway knows", () => {
  const { gateway, one, seen } = following();
  gateway.publish("5-1");
  one.stop();
  gateway.publish("5-2");
  assert.deepEqual(seen, ["5-1"]);
  assert.equal(gateway.subscriptions.size, 0);
});

test("gaps, ends and refusals reach who follows", () => {
  const { gateway, one, seen } = following();
  const gap = { requested: "5-0", first_available: "5-2", lost: 1 };
  gateway.socket.push({ op: "gap", sub: one.sub, stream: "orders", ...gap });
  gateway.socket.push({ op: "error", ref: one.sub, problem: { detail: "no room" } });
  gateway.socket.push({ op: "revoked", sub: one.sub, reason: "stream_deleted" });
  assert.equal(seen[0][1].first_available, "5-2");
  assert.deepEqual(seen.slice(1), [["failed", "no room"], ["revoked", "stream_deleted"]]);
  one.grant(5);
  assert.equal(gateway.heard.some(({ op }) => op === "credit"), false, "no credit for what has ended");
});
