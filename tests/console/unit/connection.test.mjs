import assert from "node:assert/strict";
import { test } from "node:test";
import { Connection } from "../../../app/console/shared/connection.js";
import { Gateway } from "./gateway.mjs";

/** An open connection with a subscription. @param {string} after @param {number} credit */
function subscribed(after = "5-0", credit = 10) {
  const gateway = new Gateway();
  const connection = new Connection("ws://gateway/v1/ws", gateway.environment);
  connection.open();
  gateway.socket.accept();
  /** @type {any[]} */
  const seen = [];
  const note = (/** @type {string} */ what) => (/** @type {any[]} */ ...rest) => seen.push([what, ...rest]);
  const subscriber = {
    onEntries: (/** @type {{id: string}[]} */ entries) => seen.push(...entries.map(({ id }) => id)),
    onGap: note("gap"), onCaughtUp: note("caught up"), onPaused: note("paused"), onRevoked: note("revoked"), onClosed: note("closed"), onResumed: note("resumed"), onError: note("error"),
  };
  const subscription = connection.subscribe("orders", after, credit, subscriber);
  return { gateway, connection, subscription, seen };
}

test("after a reconnect it continues after the last entry received, with the remaining credit", () => {
  const { gateway, connection, subscription, seen } = subscribed();
  for (const id of ["5-1", "5-2"]) gateway.publish(id);
  gateway.socket.lose(1006);
  gateway.entries.push({ id: "5-3", fields: {} });
  gateway.nowMs += 20_000;
  connection.tick();
  gateway.socket.accept();
  assert.deepEqual(gateway.received.filter(({ op }) => op === "subscribe").map(({ streams, credit }) => [streams, credit]), [
    [{ orders: "5-0" }, 10],
    [{ orders: "5-2" }, 8],
  ]);
  assert.deepEqual(seen, ["5-1", "5-2", ["resumed", "5-2", 20_000], "5-3"]);
  assert.equal(subscription.cursor, "5-3");
});

test("received entries reduce the credit, grants raise it, on both sides", () => {
  const { gateway, subscription } = subscribed("5-0", 2);
  for (const id of ["5-1", "5-2", "5-3"]) gateway.publish(id);
  assert.equal(subscription.credit, 0);
  subscription.grant(5);
  assert.equal(subscription.credit, 4);
  assert.equal(gateway.subscriptions.get(subscription.sub)?.credit, 4);
});

test("entries that waited for the subscription, for credit or for a connection were not pushed at once", () => {
  const { gateway, connection, subscription } = subscribed("5-0", 1);
  const beganMs = gateway.nowMs;
  assert.equal(subscription.openSinceMs, beganMs);
  gateway.nowMs += 100;
  subscription.grant(1);
  assert.equal(subscription.openSinceMs, beganMs, "there was always credit");
  for (const id of ["5-1", "5-2"]) gateway.publish(id);
  gateway.nowMs += 100;
  subscription.grant(1);
  assert.equal(subscription.openSinceMs, beganMs + 200);
  gateway.socket.lose(1006);
  gateway.nowMs += 20_000;
  connection.tick();
  gateway.socket.accept();
  assert.equal(subscription.openSinceMs, beganMs + 20_200);
});

test("each attempt waits longer, half of it at random", () => {
  const waits = (/** @type {number} */ random) => {
    const { gateway, connection } = subscribed();
    gateway.random = random;
    return Array.from({ length: 8 }, () => {
      gateway.socket.lose(1006);
      const waitMs = connection.state.retryAtMs - gateway.nowMs;
      gateway.nowMs += waitMs - 1;
      connection.tick();
      assert.equal(connection.state.phase, "waiting");
      gateway.nowMs += 1;
      connection.tick();
      assert.equal(connection.state.phase, "connecting");
      return waitMs;
    });
  };
  assert.deepEqual(waits(0), [250, 500, 1_000, 2_000, 4_000, 5_000, 5_000, 5_000]);
  assert.deepEqual(waits(1), [500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000, 10_000]);
});

test("a connection that misses three heartbeats is given up", () => {
  const { gateway, connection } = subscribed();
  gateway.nowMs += 45_000;
  connection.tick();
  assert.equal(connection.state.phase, "open");
  gateway.nowMs += 1;
  connection.tick();
  assert.equal(connection.state.phase, "waiting");
  assert.match(connection.state.reason, /missed three heartbeats/);
  assert.equal(gateway.sockets[0]?.readyState, 3, "closed on our side");
});

test("received frames keep it alive, and it pings three times per heartbeat", () => {
  const { gateway, connection } = subscribed();
  for (let s = 0; s < 120; s += 1) {
    gateway.nowMs += 1_000;
    connection.tick();
    if (s % 15 === 0) gateway.socket.push({ op: "pong" });
  }
  assert.equal(connection.state.phase, "open");
  assert.equal(gateway.received.filter(({ op }) => op === "ping").length, 20);
});

test("on goaway it closes at the time the gateway names, and reconnects", () => {
  const { gateway, connection } = subscribed();
  gateway.socket.push({ op: "goaway", after_ms: 700 });
  gateway.nowMs += 699;
  connection.tick();
  assert.equal(connection.state.phase, "open");
  gateway.nowMs += 1;
  connection.tick();
  assert.equal(connection.state.phase, "waiting");
  assert.equal(connection.state.reason, "the gateway is stopping");
});

test("after a refusal it reconnects only on request", () => {
  const { gateway, connection } = subscribed();
  gateway.socket.lose(4500);
  gateway.nowMs += 3_600_000;
  connection.tick();
  assert.equal(connection.state.phase, "refused");
  connection.retry();
  assert.equal(connection.state.phase, "connecting");
});

test("the time away counts from the first loss, whose reason stays", () => {
  const { gateway, connection } = subscribed();
  const lostAtMs = gateway.nowMs;
  gateway.socket.lose(1012);
  for (let tries = 0; tries < 3; tries += 1) {
    gateway.nowMs += 20_000;
    connection.tick();
    gateway.socket.lose(1006);
  }
  assert.equal(connection.state.lostAtMs, lostAtMs);
  assert.equal(connection.state.reason, "the gateway is restarting");
});

test("a stopped subscription receives no more entries and is cancelled at the gateway", () => {
  const { gateway, subscription, seen } = subscribed();
  gateway.publish("5-1");
  subscription.stop();
  gateway.publish("5-2");
  assert.deepEqual(seen, ["5-1"]);
  assert.equal(gateway.subscriptions.size, 0);
});

test("an outage of the gateway leaves the time of the connection as it is", () => {
  const { gateway, connection } = subscribed();
  const { sinceMs } = connection.state;
  let changes = 0;
  connection.addEventListener("change", () => (changes += 1));
  gateway.nowMs += 1_000;
  for (const outage of ["the backend does not answer", "the backend does not answer", ""]) connection.setOutage(outage);
  assert.equal(changes, 2);
  assert.deepEqual([connection.state.phase, connection.state.sinceMs, connection.state.outage], ["open", sinceMs, ""]);
});

test("a backend that is away is an outage, not a lack of credit", () => {
  const { gateway, connection, subscription, seen } = subscribed();
  gateway.socket.push({ op: "paused", sub: subscription.sub, reason: "backend" });
  assert.equal(connection.state.outage, "the backend does not answer");
  gateway.socket.push({ op: "resumed", sub: subscription.sub });
  assert.equal(connection.state.outage, "");
  assert.deepEqual(seen, []);
});

test("gaps, ends and errors reach the subscriber", () => {
  const { gateway, subscription, seen } = subscribed();
  const gap = { requested: "5-0", first_available: "5-2", lost: 1 };
  gateway.socket.push({ op: "gap", sub: subscription.sub, stream: "orders", ...gap });
  gateway.socket.push({ op: "error", ref: subscription.sub, problem: { detail: "no room" } });
  gateway.socket.push({ op: "revoked", sub: subscription.sub, reason: "stream_deleted" });
  assert.equal(seen[0][1].first_available, "5-2");
  assert.deepEqual(seen.slice(1), [["error", "no room"], ["revoked", "stream_deleted"]]);
  subscription.grant(5);
  assert.equal(gateway.received.some(({ op }) => op === "credit"), false, "no credit for a subscription that ended");
});
