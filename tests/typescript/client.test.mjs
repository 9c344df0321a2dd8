// The TypeScript client in Node, beside a real gateway. WEIR_URL is the gateway, WEIR_CLIENT the compiled module.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { test } from "node:test";

const {
  ApiError,
  Client,
  ConsumerReplacedError,
  ForbiddenError,
  GapError,
  GroupDeletedError,
  InvalidValueError,
  NoAnswerError,
  NotAGatewayError,
  StreamDeletedError,
  WeirError,
  Worker,
  bytes,
} = await import(process.env.WEIR_CLIENT);
const { WebSocket: webSocket, WebSocketServer } = await import(process.env.WEIR_WS);
const url = process.env.WEIR_URL;
const client = new Client({ url });
let streams = 0;
const fresh = () => `ts/ü +${process.pid}-${streams++}`;
const collect = async (iterable) => {
  const all = [];
  for await (const one of iterable) all.push(one);
  return all;
};
const until = async (holds) => {
  for (let tries = 0; tries < 1_000; tries++) {
    if (await holds()) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  assert.fail("it did not come to that");
};
/** What is warned of from now on, until its `end`. */
const mutedWarnings = () => {
  const [said, { warn }] = [[], console];
  console.warn = (text) => said.push(text);
  said.end = () => (console.warn = warn);
  return said;
};
const settled = (stream) => async () => {
  const info = await client.group(stream, "g").info().catch((error) => assert.equal(error.status, 404));
  return info?.pending === 0 && info.lag === 0;
};

test("what is published is read as it was", async () => {
  const stream = fresh();
  const { ids } = await client.publish(stream, { text: "ü\u2028", number: 19.5, flag: true });
  const entry = await client.getEntry(stream, ids[0]);
  assert.deepEqual(entry.fields, { text: "ü\u2028", number: "19.5", flag: "true" });
  assert.equal(entry.stream, stream);
  await client.publish(stream, [["a", new Uint8Array([255, 0])], ["a", "ü"]]);
  await client.publish(stream, [["a", "1"], ["a", "2"]]);
  const [, binary, pairs] = (await client.read(stream)).entries;
  assert.deepEqual(bytes(binary), { a: new TextEncoder().encode("ü") });
  assert.deepEqual(pairs.pairs, [["a", "1"], ["a", "2"]]);
});

test("an entry for later comes at its time, once or again and again", async () => {
  const stream = fresh();
  assert.match((await client.publishLater(stream, { n: 1 }, { delayMs: 20 })).schedule, /^sch_/);
  const page = await client.readAfter(stream, "0", { waitMs: 5_000 });
  assert.deepEqual(page.entries.map(({ fields }) => fields), [{ n: "1" }]);
  const set = () => client.schedule(stream, "tick", { n: 2 }, { every_ms: 60_000 });
  const first = await set();
  assert.deepEqual(await set(), first);
  assert.deepEqual(await client.getSchedule(stream, "tick"), first);
  assert.deepEqual((await collect(client.listSchedules(stream))).map(({ name }) => name), ["tick"]);
  assert.equal((await client.pauseSchedule(stream, "tick")).next_at, null);
  const until = "2035-01-01T00:00:00.000Z";
  assert.equal((await client.pauseSchedule(stream, "tick", until)).paused_until, until);
  assert.deepEqual(await client.resumeSchedule(stream, "tick"), first);
  assert.match(await client.fireSchedule(stream, "tick"), /^\d+-\d+$/);
  const all = await collect(client.listAllSchedules());
  assert.ok(all.some((one) => one.stream === stream && one.name === "tick"));
  assert.equal(await client.cancelSchedule(stream, "tick"), true);
  assert.equal(await client.cancelSchedule(stream, "tick"), false);
  assert.equal(await client.getSchedule(stream, "tick"), undefined);
  await client.publishLater(stream, { n: 3 }, { delayMs: 60_000, name: "timeout" });
  await client.publish(stream, { n: 4 }, { cancel_schedule: "timeout", required: true });
  assert.deepEqual(await collect(client.listSchedules(stream, "name")), []);
});

test("of a batch some come later", async () => {
  const stream = fresh();
  const later = { fields: { n: 2 }, delayMs: 60_000, schedule: "a" };
  const given = await client.publishTimed(stream, [{ fields: { n: 1 } }, later, { fields: { n: 3 } }]);
  assert.deepEqual((await client.read(stream)).entries.map(({ id }) => id), given.ids);
  assert.deepEqual(given.scheduled.map(({ index, schedule }) => [index, schedule]), [[1, "a"]]);
  assert.deepEqual((await client.publishTimed(stream, [later])).ids, []);
});

test("neighbouring IDs are distinct", async () => {
  const stream = fresh();
  for (const id of ["5-0", "5-1", "5-2"]) await client.publish(stream, { n: id }, { id });
  assert.deepEqual((await client.read(stream, { start: "(5-0", end: "5-1" })).entries.map(({ id }) => id), ["5-1"]);
  const all = await collect(client.entries(stream, { after: "5-0", pageCount: 1 }));
  assert.deepEqual(all.map(({ id }) => id), ["5-1", "5-2"]);
  await assert.rejects(client.publish(stream, { n: 1 }, { ifLastId: "5-1" }), { code: "last_id_mismatch" });
});

test("the same key stores once", async () => {
  const stream = fresh();
  const first = await client.publishBatch(stream, [{ n: 1 }, { n: 2 }], { key: "k" });
  const second = await client.publishBatch(stream, [{ n: 1 }, { n: 2 }], { key: "k" });
  assert.deepEqual([first.duplicate, second.duplicate, second.ids], [false, true, first.ids]);
  const many = await client.publishMany({ [`${stream} 1`]: [{ n: 1 }], [`${stream} 2`]: [{ n: 1 }, { n: 2 }] });
  assert.equal(many[`${stream} 2`].count, 2);
});

test("refusals have the gateway's code", async () => {
  const stream = fresh();
  assert.equal(await client.getStream(stream), undefined);
  await assert.rejects(client.deleteStream(stream), (error) => error instanceof ApiError && error.code === "no_stream");
  assert.throws(() => client.group(stream, "a//b"), WeirError);
  assert.throws(() => client.group(stream, "half \ud800"), { name: "InvalidValueError", message: /is not a name/ });
  const nowhere = new Client({ url: "http://127.0.0.1:9", retryMs: 0 });
  await assert.rejects(nowhere.command("PING"), (error) => error instanceof NoAnswerError && error.outcomeUnknown);
});

test("what is no URL of a gateway is refused at once, and a failure names the gateway and the reason", async () => {
  for (const no of ["localhost:8080", "8080", "ftp://localhost", `${url}/v1`]) {
    assert.throws(() => new Client({ url: no }), { name: "InvalidValueError", message: /^a gateway's URL/ });
  }
  const nowhere = new Client({ url: "http://127.0.0.1:9", retryMs: 0 });
  await assert.rejects(nowhere.command("PING"), /gateway at http:\/\/127\.0\.0\.1:9\/ does not answer: .*(ECONNREFUSED|bad port)/);
});

test("what cannot be sent is refused before it is sent", async () => {
  const nowhere = new Client({ url: "http://127.0.0.1:9", retryMs: Infinity });
  const half = "half \ud800";
  const calls = [
    () => nowhere.publish("s", {}),
    () => nowhere.publish("s", []),
    () => nowhere.publish("s", { n: half }),
    () => nowhere.publish("s", { [half]: "n" }),
    () => nowhere.publish("s", { n: half, raw: new Uint8Array(1) }),
    () => nowhere.publishMany({ s: [{ [half]: 1 }] }),
    () => nowhere.publishMany({ [half]: [{ n: 1 }] }),
    () => nowhere.command("XADD", "s", "*", "n", half),
    () => nowhere.listStreams(half).next(),
    () => nowhere.tail(["s", half]).next(),
    () => nowhere.tail([]).next(),
    () => nowhere.tail("s", { after: half }).next(),
    () => nowhere.group("s", "g").deadLetter(["5-1"], half),
    ...[undefined, null, NaN, Infinity, 1n, {}, [], () => 1].flatMap((value) => [
      () => nowhere.publish("s", { n: 1, value }),
      () => nowhere.publish("s", [["value", value]]),
      () => nowhere.publish("s", { value, raw: new Uint8Array(1) }),
    ]),
    ...["", half, "ü", "a\nb", "→"].map((key) => () => nowhere.publish("s", { n: 1 }, { key })),
    () => new Client({ url: "http://127.0.0.1:9", token: "secret\n" }).getStream("s"),
  ];
  for (const call of calls) {
    await assert.rejects(
      call(),
      (error) => error instanceof InvalidValueError && error instanceof WeirError && !/secret/.test(error.message),
      String(call),
    );
  }
});

/** What listens where a gateway should. */
async function beside(answer, use) {
  const server = createServer((request, response) => {
    request.resume();
    answer(request, response);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    return await use(`http://127.0.0.1:${server.address().port}`);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

for (const text of ["<html>", "{}", "[]", "null", '"ok"', "7", '{"entries":[null],"streams":null}', '{"entries":7}']) {
  test(`an answer that is no gateway's is named: ${text}`, async () => {
    await beside((_, response) => response.end(text), async (foreign) => {
      const client = new Client({ url: foreign, retryMs: 0 });
      const group = client.group("s", "g");
      const calls = [
        () => client.command("PING"),
        () => client.publish("s", { n: 1 }),
        () => client.publishMany({ s: [{ n: 1 }] }),
        () => client.read("s"),
        () => collect(client.entries("s")),
        () => client.getEntry("s", "5-1"),
        () => client.getStream("s"),
        () => client.ensureStream("s"),
        () => client.deleteEntries("s", ["5-1"]),
        () => client.trim("s", { maxlen: 1 }),
        () => collect(client.listStreams()),
        () => client.tail("s").next(),
        () => group.ensure(),
        () => group.info(),
        () => group.read("c"),
        () => group.ack(["5-1"]),
        () => group.claim("c", ["5-1"]),
        () => group.extend("c", ["5-1"]),
        () => collect(group.pending()),
        () => group.deadLetter(["5-1"]),
        () => group.redrive(),
        ...["long-poll"].map((via) => () => new Worker(client, { stream: "s", group: "g", consumer: "c", via }).run(() => 0)),
      ];
      for (const call of calls) await assert.rejects(call(), NotAGatewayError, String(call));
    });
  });
}

for (const event of ["entry\ndata: hello", "entry\ndata: {}", "entry\ndata: 7", "error\ndata: 7", "gap\ndata: x"]) {
  test(`an event that is no gateway's is named: ${JSON.stringify(event)}`, async () => {
    const answer = (_, response) => {
      response.setHeader("content-type", "text/event-stream");
      response.end(`event: ${event}\n\n`);
    };
    await beside(answer, (foreign) => assert.rejects(new Client({ url: foreign }).tail("s").next(), NotAGatewayError));
  });
}

for (const frame of ["hello", "7", "null", '{"op":"hello"}', '{"op":"entries","entries":[{}]}', '{"op":"error"}']) {
  test(`a frame that is no gateway's ends the worker: ${frame}`, async () => {
    const server = new WebSocketServer({ port: 0, host: "127.0.0.1" });
    server.on("connection", (socket) => socket.send(frame));
    await new Promise((resolve) => server.on("listening", resolve));
    const worker = new Worker(`http://127.0.0.1:${server.address().port}`, { stream: "s", group: "g", consumer: "c", webSocket });
    await assert.rejects(worker.run(() => 0), NotAGatewayError);
    server.close();
  });
}

test("what a proxy says for a gateway that is away is no answer", async () => {
  let left = 0;
  const answer = async (request, response) => {
    response.statusCode = left-- > 0 ? 502 : 201;
    response.end(JSON.stringify({ id: "5-1", duplicate: false }));
  };
  await beside(answer, async (proxy) => {
    const client = new Client({ url: proxy });
    left = 2;
    assert.deepEqual((await client.publish("s", { n: 1 })).ids, ["5-1"]);
    left = 1;
    await assert.rejects(client.command("XADD", "s", "*", "n", 1), (error) => error instanceof NoAnswerError && error.outcomeUnknown);
  });
});

test("what a gateway says of its backend is not asked again", async () => {
  const problems = [
    { status: 502, code: "backend_error", retryable: false, outcome: "unknown" },
    { status: 503, code: "backend_unavailable", retryable: true, outcome: "unknown" },
  ];
  for (const problem of problems) {
    let asked = 0;
    const answer = async (request, response) => {
      response.statusCode = ++asked > 2 ? 201 : problem.status;
      response.end(JSON.stringify(asked > 2 ? { id: "5-1", duplicate: false } : problem));
    };
    await beside(answer, async (gateway) => {
      const client = new Client({ url: gateway });
      const refused = { name: "ApiError", code: problem.code, status: problem.status };
      await assert.rejects(client.command("XADD", "s", "*", "n", 1), refused);
      assert.equal(asked, 1);
      // Under its key a publish may be repeated where that may help.
      const publishing = client.publish("s", { n: 1 });
      if (problem.retryable) assert.deepEqual((await publishing).ids, ["5-1"]);
      else await assert.rejects(publishing, refused);
      assert.equal(asked, problem.retryable ? 3 : 2);
    });
  }
});

test("a refused command says what Redis would", async () => {
  await assert.rejects(client.command("NOPE"), { name: "ApiError", message: /^ERR unknown command/ });
});

test("credit is at least 1", () => {
  const options = { stream: "s", group: "g", consumer: "c" };
  for (const credit of [0, NaN]) assert.throws(() => new Worker(url, { ...options, credit }), InvalidValueError);
});

test("a backslash is no surrogate", async () => {
  const stream = fresh();
  const text = "\\ud800 \\\\ud800 \u{1f600}";
  await client.publish(stream, { [text]: text });
  assert.deepEqual((await client.read(stream)).entries[0].fields, { [text]: text });
});

test("what cannot be done dies and goes back", async () => {
  const stream = fresh();
  const { ids } = await client.publishBatch(stream, [{ n: 0 }, { n: 1 }, { n: 2 }]);
  const group = client.group(stream, "g");
  await group.ensure("0", { dead_letter: { stream: `${stream} dead` } });
  await group.read("c");
  const moved = await group.deadLetter(ids.slice(0, 2), "no such customer");
  assert.deepEqual(moved, { stream: `${stream} dead`, ids: ids.slice(0, 2) });
  assert.deepEqual((await group.deadLetter(ids.slice(1))).ids, ids.slice(2));
  const letters = (await collect(client.entries(`${stream} dead`))).map(({ id }) => id);
  const shown = await group.redrive({ filter: { reason: "no such customer" }, count: 1, dry_run: true });
  assert.deepEqual([shown.entries, shown.next], [[{ dead_letter_id: letters[0], id: null }], letters[0]]);
  const selection = { filter: { start: `(${shown.next}`, end: letters[2] }, key: "k" };
  const once = await group.redrive(selection);
  assert.deepEqual(once.entries.map(({ dead_letter_id }) => dead_letter_id), letters.slice(1));
  assert.deepEqual(await group.redrive(selection), { ...once, duplicate: true });
  assert.equal((await group.redrive({ ids: letters.slice(0, 1) })).redriven, 1);
  const copies = await collect(client.entries(stream, { after: ids[2] }));
  assert.deepEqual(copies.map(({ fields }) => fields.n), ["1", "2", "0"]);
});

test("streams and groups are managed", async () => {
  const stream = fresh();
  await client.ensureStream(stream, { max_len: 10 });
  const { ids } = await client.publishBatch(stream, [{ n: 1 }, { n: 2 }, { n: 3 }]);
  assert.deepEqual((await collect(client.listStreams(stream))).map(({ name }) => name), [stream]);
  assert.deepEqual(await client.deleteEntries(stream, [ids[0]]), { [ids[0]]: "deleted" });
  assert.equal(await client.trim(stream, { maxlen: 1, dry_run: true }), 1);
  const group = client.group(stream, "g");
  await assert.rejects(group.info(), { status: 404, code: "no_group" });
  await group.ensure("0");
  assert.equal((await group.read("c1", { count: 10 })).entries.length, 2);
  assert.equal((await group.history("c1")).entries[0].delivery_count, 2);
  assert.equal(await group.ack([ids[1]]), 1);
  assert.deepEqual(await group.extend("c1", [ids[2]]), [ids[2]]);
  assert.deepEqual((await group.claim("c2", [ids[2]])).map(({ id }) => id), [ids[2]]);
  assert.deepEqual((await collect(group.pending())).map(({ consumer }) => consumer), ["c2"]);
  await assert.rejects(group.delete(), { code: "group_has_pending" });
  await group.delete(true);
  await client.deleteStream(stream);
});

test("a group is paused and resumed", async () => {
  const stream = fresh();
  await client.publish(stream, { n: 1 });
  const group = client.group(stream, "g");
  await group.ensure("0");
  assert.equal((await group.pause()).paused, true);
  const nothing = await group.read("c");
  assert.deepEqual([nothing.entries.length, nothing.paused], [0, true]);
  assert.equal((await group.resume()).paused, false);
  const page = await group.read("c");
  assert.deepEqual([page.entries.length, page.paused], [1, undefined]);
});

test("entries of the first stream come before those of the second", async () => {
  const streams = ["high", "low"].map((part) => `${fresh()}:${part}`);
  const [high, low] = streams;
  for (const stream of streams) await client.publish(stream, { n: 0 }, { id: "1-0" });
  await client.publishBatch(low, [{ n: 1 }, { n: 2 }]);
  const order = [];
  const worker = new Worker(url, { streams, priority: "strict", group: "g", consumer: "c" });
  const running = worker.run(async ({ entry }) => {
    order.push(entry.stream === high ? "high" : "low");
    if (order.length < 20) await client.publish(high, { n: order.length });
  });
  for (const stream of streams) await until(settled(stream));
  worker.stop();
  await running;
  assert.deepEqual(order, [...Array(20).fill("high"), ...Array(3).fill("low")]);
});

for (const via of ["websocket", "long-poll"]) {
  test(`entries of a key are worked on in order, ${via}`, async () => {
    const stream = fresh();
    await client.publishBatch(stream, Array.from({ length: 12 }, (_, n) => ({ n, user: n % 2 ? "b" : "a" })));
    const done = { a: [], b: [] };
    const busy = { a: 0, b: 0 };
    const options = { stream, group: "g", via, webSocket, orderedBy: "user" };
    const workers = ["x", "y"].map((consumer) => new Worker(url, { ...options, consumer }));
    const running = workers.map((worker) =>
      worker.run(async ({ entry }) => {
        const { user, n } = entry.fields;
        busy[user] += 1;
        assert.equal(busy[user], 1);
        await new Promise((resolve) => setTimeout(resolve, 1));
        busy[user] -= 1;
        done[user].push(Number(n));
      }, 3),
    );
    await until(settled(stream));
    for (const one of workers) one.stop();
    await Promise.all(running);
    assert.deepEqual(done, { a: [0, 2, 4, 6, 8, 10], b: [1, 3, 5, 7, 9, 11] });
    const other = new Worker(url, { ...options, consumer: "z", orderedBy: "customer" });
    await assert.rejects(other.run(() => undefined), /is there with ordered_by=user/);
  });
}

test("a worker has one stream or several", () => {
  for (const named of [{}, { stream: "a", streams: ["b"] }, { streams: ["a", "a"] }, { streams: [] }]) {
    assert.throws(() => new Worker(url, { group: "g", consumer: "c", ...named }), { name: "InvalidValueError" });
  }
});

test("a URL alone is enough for a client", async () => {
  const other = new Client(`${url}`);
  assert.equal(other.http.url.href, new Client({ url }).http.url.href);
  assert.throws(() => new Client("no url"), { name: "InvalidValueError" });
});

test("what is scheduled keeps a stream open, unless it is dropped", async () => {
  const stream = fresh();
  await client.publishLater(stream, { n: 1 }, { delayMs: 60_000 });
  await assert.rejects(client.closeStream(stream), { code: "has_schedules" });
  assert.equal((await client.closeStream(stream, { dropSchedules: true })).duplicate, false);
  assert.deepEqual(await collect(client.listSchedules(stream)), []);
});

test("what is scheduled keeps a stream, unless it is dropped", async () => {
  const stream = fresh();
  await client.publishLater(stream, { n: 1 }, { delayMs: 60_000 });
  assert.equal((await client.getStream(stream)).schedules, 1);
  await assert.rejects(client.deleteStream(stream), { code: "has_schedules" });
  await client.deleteStream(stream, { dropSchedules: true });
  await assert.rejects(client.listSchedules(stream).next(), { code: "no_stream" });
});

test("a tail ends with its stream, and a page says so", async () => {
  const stream = fresh();
  await client.publish(stream, { n: 1 });
  const following = collect(client.tail(stream, { after: "0" }));
  const end = await client.closeStream(stream, { entry: { n: 2 }, reason: "done" });
  assert.equal(end.duplicate, false);
  assert.deepEqual((await following).map(({ fields }) => fields.n), ["1", "2"]);
  assert.deepEqual((await collect(client.tail(stream, { after: "0" }))).map(({ fields }) => fields.n), ["1", "2"]);
  assert.deepEqual(await collect(client.tail(stream)), []);
  assert.equal((await client.readAfter(stream, "0", { waitMs: 20_000 })).closed, true);
  assert.equal((await client.getStream(stream)).closed, true);
  await assert.rejects(client.publish(stream, { n: 3 }), { code: "stream_closed" });
});

for (const via of ["websocket", "long-poll"]) {
  test(`a worker stops once its group is drained, ${via}`, async () => {
    const stream = fresh();
    await client.publish(stream, { n: 1 });
    const worker = new Worker(client, { stream, group: "g", consumer: "c", via, webSocket });
    const seen = [];
    const running = worker.run(({ entry }) => seen.push(entry.fields.n));
    await client.closeStream(stream, { entry: { n: 2 } });
    await running;
    assert.deepEqual(seen, ["1", "2"]);
    assert.equal(await settled(stream)(), true);
  });
}

test("a tail joins history to what is new, and reports gaps", async () => {
  const stream = fresh();
  for (const id of ["5-0", "5-1", "5-2"]) await client.publish(stream, { n: id }, { id });
  const seen = [];
  for await (const { id } of client.tail(stream, { after: "5-0" })) {
    seen.push(id);
    if (id === "5-2") void client.publish(stream, { n: 3 }, { id: "5-3" });
    if (id === "5-3") break;
  }
  assert.deepEqual(seen, ["5-1", "5-2", "5-3"]);
  await client.trim(stream, { maxlen: 1 });
  await assert.rejects(client.tail(stream, { after: "5-1" }).next(), GapError);
  const gaps = [];
  const onGap = ({ first_available }) => gaps.push(first_available);
  for await (const { id } of client.tail(stream, { after: "5-1", onGap })) {
    assert.equal(id, "5-3");
    break;
  }
  assert.deepEqual(gaps, ["5-3"]);
});

for (const via of ["websocket", "long-poll"]) {
  const options = (stream, more = {}) => ({ stream, group: "g", consumer: "c", via, webSocket, ...more });

  test(`each entry is handled and acknowledged once, ${via}`, async () => {
    const stream = fresh();
    await client.publishBatch(stream, Array.from({ length: 200 }, (_, n) => ({ n })));
    const done = [];
    const worker = new Worker(url, options(stream, { credit: 7 }));
    const running = worker.run(({ entry }) => done.push(Number(entry.fields.n)), 3);
    await until(settled(stream));
    await client.publish(stream, { n: 200 });
    await until(settled(stream));
    worker.stop();
    await running;
    assert.deepEqual(done.sort((a, b) => a - b), Array.from({ length: 201 }, (_, n) => n));
  });

  test(`what a handler throws at is given back, ${via}`, async () => {
    const stream = fresh();
    await client.publishBatch(stream, [{ n: 0 }, { n: 1 }, { n: 2 }]);
    const seen = [];
    const errors = [];
    const worker = new Worker(url, options(stream, { onError: (error) => errors.push(error) }));
    const running = worker.run(({ entry }) => {
      seen.push(entry.fields.n);
      if (entry.fields.n === "1" && errors.length === 0) throw new Error("not today");
    });
    await until(settled(stream));
    worker.stop();
    await running;
    assert.equal(errors.length, 1);
    assert.deepEqual(seen.filter((n) => n === "1").length, 2);
  });

  test(`what a handler fails with comes back after its backoff, ${via}`, async () => {
    const stream = fresh();
    const given = [];
    await client.publish(stream, { n: 1 });
    const worker = new Worker(url, options(stream, { retry: { firstMs: 100, factor: 3 }, onError: () => 0 }));
    const running = worker.run((delivery) => {
      given.push(performance.now());
      if (given.length < 3) throw new Error("not yet");
      if (given.length === 3) delivery.retryIn(200);
      assert.throws(() => delivery.retryIn(-1), { name: "InvalidValueError" });
    });
    await until(settled(stream));
    worker.stop();
    await running;
    const waits = given.slice(1).map((at, place) => at - given[place]);
    assert.equal(waits.length, 3);
    for (const [place, least] of [90, 290, 190].entries()) assert.ok(waits[place] >= least, `${waits}`);
  });

  test(`a worker goes on at once behind many that are too old, ${via}`, async () => {
    const stream = fresh();
    const old = Array.from({ length: 3_500 }, (_, n) => ({ id: `${n + 1}-0`, fields: { n: "old" } }));
    const send = (method, path, body) =>
      fetch(`${url}/v1/streams/${encodeURIComponent(stream)}/${path}`, {
        ...{ method, body: JSON.stringify(body) },
        headers: { "content-type": "application/json" },
      });
    assert.equal((await send("POST", "entries", { entries: old })).status, 201);
    assert.equal((await send("PUT", "groups/g", { start: "0", max_age_ms: 3_600_000 })).status, 201);
    await client.publish(stream, { n: "young" });
    const found = [];
    const worker = new Worker(url, options(stream));
    const begunMs = performance.now();
    const running = worker.run(({ entry }) => void found.push(entry.fields.n));
    await until(settled(stream));
    // A long-poll would wait for 20 s.
    assert.ok(performance.now() - begunMs < 10_000);
    worker.stop();
    await running;
    assert.deepEqual(found, ["young"]);
  });

  test(`an entry stays with a worker that lives, ${via}`, async () => {
    const stream = fresh();
    const group = client.group(stream, "g");
    await group.ensure("0", { ack_timeout_ms: 1_000 });
    await client.publish(stream, { n: 0 });
    const given = [];
    const workers = ["a", "b"].map((consumer) => new Worker(url, { ...options(stream), consumer }));
    const running = workers.map((one) =>
      one.run(async ({ entry }) => {
        given.push(entry.delivery_count);
        await new Promise((resolve) => setTimeout(resolve, 3_000));
      }),
    );
    await until(settled(stream));
    for (const one of workers) one.stop();
    await Promise.all(running);
    assert.equal(given.length, 1);
  });

  test(`a handler learns that its entry was given to another, ${via}`, async () => {
    const stream = fresh();
    const group = client.group(stream, "g");
    await group.ensure("0", { ack_timeout_ms: 1_000 });
    await client.publish(stream, { n: 0 });
    const worker = new Worker(url, options(stream));
    await worker.run(async (delivery) => {
      assert.equal(delivery.lost, false);
      await group.claim("other", [delivery.entry.id]);
      await until(() => delivery.lost);
      worker.stop();
    });
    const left = (await collect(group.pending())).map(({ consumer }) => consumer);
    assert.ok(left.length === 1 && [null, "other"].includes(left[0]), `${left}`);
  });

  test(`what fails late stays with the worker that has it now, ${via}`, async () => {
    const stream = fresh();
    const group = client.group(stream, "g");
    await client.publish(stream, { n: 0 });
    const worker = new Worker(url, options(stream, { lease: "off", onError: () => worker.stop() }));
    await worker.run(async ({ entry }) => {
      await group.claim("other", [entry.id]);
      throw new Error("too late");
    });
    const left = (await collect(group.pending())).map((one) => [one.consumer, one.delivery_count]);
    assert.deepEqual(left, [["other", 2]]);
  });

  test(`what is done counts though the entry was lost, and is not begun again, ${via}`, async () => {
    const stream = fresh();
    const group = client.group(stream, "g");
    await group.ensure("0", { ack_timeout_ms: 300 });
    await client.publish(stream, { n: 0 });
    const worker = new Worker(url, options(stream, { credit: 1 }));
    const said = mutedWarnings();
    let begun = 0;
    const running = worker.run(async ({ entry }) => {
      begun += 1;
      // It is put off behind the worker's back.
      await group.nack([entry.id], "fail", 700);
      await until(() => said.some((one) => one.includes(`entry ${entry.id} of`)));
      // And it comes back.
      if (begun === 1) await until(async () => (await collect(group.pending()))[0]?.consumer === "c");
    });
    await until(settled(stream));
    worker.stop();
    await running;
    said.end();
    assert.equal(begun, 1);
  });

  test(`what its program has left is begun anew when it comes back, ${via}`, async () => {
    const stream = fresh();
    const group = client.group(stream, "g");
    await group.ensure("0", { ack_timeout_ms: 300 });
    await client.publish(stream, { n: 0 });
    const worker = new Worker(url, options(stream, { credit: 1 }));
    let begun = 0;
    const said = mutedWarnings();
    const running = worker.run(async (delivery) => {
      begun += 1;
      if (begun > 1) return;
      await group.nack([delivery.entry.id], "fail", 700);
      await until(() => delivery.lost);
      // It comes back before the program, which works on it no more, has returned.
      await until(async () => (await collect(group.pending()))[0]?.consumer === "c");
    });
    await until(settled(stream));
    worker.stop();
    await running;
    said.end();
    assert.equal(begun, 2);
  });

  test(`what is given back during an extension goes back after it, ${via}`, async () => {
    const stream = fresh();
    await client.publish(stream, { n: 0 });
    let answer;
    const answered = new Promise((resolve) => (answer = resolve));
    const slow = async (target, init) => {
      if (String(target).endsWith("/extend")) await answered;
      return fetch(target, init);
    };
    const worker = new Worker(new Client({ url, fetch: slow }), options(stream, { lease: "off" }));
    let begun = 0;
    const running = worker.run(async (delivery) => {
      begun += 1;
      if (begun > 1) return;
      const extending = delivery.extend();
      delivery.nack("silent");
      assert.deepEqual(worker.holdings.unconfirmed, []);
      answer();
      assert.equal(await extending, false);
      assert.equal(worker.holdings.unconfirmed.length, 1);
    });
    await until(settled(stream));
    worker.stop();
    await running;
    assert.equal(begun, 2);
  });

  test(`a worker ends within its grace if the gateway is away, ${via}`, async () => {
    const stream = fresh();
    await client.publish(stream, { n: 0 });
    let answers = true;
    const cut = (...all) => (answers ? fetch(...all) : Promise.reject(new TypeError("the link is cut")));
    const linked = new Client({ url, fetch: cut, retryMs: 100 });
    const worker = new Worker(linked, options(stream, { graceMs: 300 }));
    await worker.run(async () => {
      answers = false;
      worker.stop();
      await new Promise((resolve) => setTimeout(resolve, 50));
    });
  });

  test(`a worker with much credit gives all of it back, ${via}`, async () => {
    const stream = fresh();
    await client.publishBatch(stream, Array.from({ length: 1_002 }, (_, n) => ({ n })));
    const worker = new Worker(url, options(stream, { credit: 1_002 }));
    await worker.run(async () => {
      await until(async () => (await client.group(stream, "g").info())?.pending === 1_002);
      await new Promise((resolve) => setTimeout(resolve, 200));
      worker.stop();
    });
    const pending = await collect(client.group(stream, "g").pending());
    assert.equal(pending.filter(({ consumer }) => consumer !== null).length, 0);
  });

  test(`a worker that stops gives back what it has not begun, ${via}`, async () => {
    const stream = fresh();
    await client.publishBatch(stream, Array.from({ length: 5 }, (_, n) => ({ n })));
    let release;
    const held = new Promise((resolve) => (release = resolve));
    const begun = new Promise((resolve) => {
      const worker = new Worker(url, options(stream));
      const running = worker.run(async () => {
        resolve({ worker, running });
        await held;
      });
    });
    const { worker, running } = await begun;
    worker.stop();
    release();
    await running;
    const pending = await collect(client.group(stream, "g").pending());
    assert.deepEqual(pending.map(({ consumer, delivery_count }) => [consumer, delivery_count]), Array(4).fill([null, 0]));
  });
}

test("a gateway that knows no consumer of a nack is sent what it knows", async () => {
  const stream = fresh();
  const group = client.group(stream, "g");
  await group.ensure("0", { dead_letter: { stream: `${stream}-dead` } });
  const { ids } = await client.publishBatch(stream, Array.from({ length: 4 }, (_, n) => ({ n })));
  await group.read("a");
  await group.claim("b", ids);
  // One that says nothing of it; and several behind one address, of which the first does.
  for (const [answered, ...given] of [[{ name: "weir" }, ids[0], ids[1]], [undefined, ids[2], ids[3]]]) {
    const sent = [];
    const old = async (target, init) => {
      const { pathname } = new URL(target);
      if (pathname === "/v1" && answered) return Response.json(answered);
      const body = init.body && JSON.parse(init.body);
      if (body?.consumer === undefined) return fetch(target, init);
      sent.push(body);
      return Response.json({ status: 422, code: "invalid", errors: [{ pointer: "/consumer", detail: "unknown member" }] }, { status: 422 });
    };
    const linked = new Client({ url, fetch: old }).group(stream, "g");
    assert.deepEqual(await linked.nack([given[0]], "fail", 0, "a"), []);
    assert.deepEqual((await linked.deadLetter([given[1]], "bad", "a")).ids, [given[1]]);
    assert.equal(sent.length, answered ? 0 : 1);
  }
  assert.deepEqual((await collect(group.pending())).map(({ consumer }) => consumer), [null, null]);
});

test("what another consumer holds is not given back, nor made a dead letter", async () => {
  const stream = fresh();
  const group = client.group(stream, "g");
  await group.ensure("0", { dead_letter: { stream: `${stream}-dead` } });
  const { ids } = await client.publishBatch(stream, [{ n: 0 }, { n: 1 }]);
  await group.read("a");
  await group.claim("b", [ids[0]]);
  const { ids: moved, not_held } = await group.deadLetter(ids, "bad", "b");
  assert.deepEqual([moved, not_held], [[ids[0]], [ids[1]]]);
  assert.deepEqual(await group.nack(ids, "fail", 0, "b"), [ids[1]]);
  assert.deepEqual(await group.nack(ids, "fail", 0, "a"), []);
  // No one has it: its consumer works on.
  assert.deepEqual(await group.extend("a", ids), [ids[1]]);
  await assert.rejects(group.nack(ids, "fail", 0, "a//b"), { code: "invalid_name" });
});

test("a gateway that does not know long cursors is asked for them once", async () => {
  const recorded = new URL("../mixed/recorded.json", import.meta.url);
  const { refused } = JSON.parse(await readFile(recorded, "utf8"));
  const stream = fresh();
  await client.publish(stream, { n: 0 }, { id: "5-0" });
  const asked = [];
  const old = async (target, init) => {
    const { pathname, searchParams } = new URL(target);
    asked.push([pathname.split("/").pop(), searchParams.get("after"), init.headers["last-event-id"]]);
    if (!searchParams.has("cursor")) return fetch(target, init);
    const { status, answer_headers: headers, answer } = refused[0];
    return new Response(answer, { status, headers });
  };
  const known = await client.readAfter(stream, "0");
  assert.match(known.next, /^5-0\..+/);
  const linked = new Client({ url, fetch: old });
  // Together: both are refused, and both go on.
  const pages = await Promise.all([linked.readAfter(stream, "0"), linked.readAfter(stream, known.next)]);
  assert.deepEqual(pages.map(({ entries }) => entries.length), [1, 0]);
  assert.equal((await linked.readAfter(stream, known.next)).next, "5-0");
  const tail = linked.tail(stream, { after: known.next });
  void client.publish(stream, { n: 1 }, { id: "5-1" });
  assert.equal((await tail.next()).value.id, "5-1");
  await tail.return();
  const afters = asked.map(([, after]) => after);
  assert.deepEqual(afters, ["0", known.next, "0", "5-0", "5-0", "5-0"]);
});

test("another stream of the name is told from the one that was read", async () => {
  const stream = fresh();
  const replace = async () => {
    await client.deleteStream(stream);
    await client.publish(stream, { n: "new" }, { id: "3-0" });
  };
  await client.publish(stream, { n: "old" }, { id: "7-0" });
  await client.publish(stream, { n: "old" }, { id: "7-1" });
  const { next } = await client.readAfter(stream, "0");
  const entries = client.entries(stream, { pageCount: 1 });
  await entries.next();
  await replace();
  const told = await client.readAfter(stream, next, { waitMs: 10_000 });
  assert.deepEqual([told.gap.requested, told.gap.reason, told.entries], ["7-1", "recreated", []]);
  assert.deepEqual((await client.readAfter(stream, told.next)).entries.map(({ fields }) => fields.n), ["new"]);
  await assert.rejects(entries.next(), { name: "GapError", message: /was deleted and made again after 7-0 was read$/ });
  for (const streams of [stream, [stream, `${stream} other`]]) {
    const reasons = [];
    const tail = client.tail(streams, { after: "0", onGap: ({ reason }) => reasons.push(reason) });
    assert.equal((await tail.next()).value.id, "3-0");
    await replace();
    assert.equal((await tail.next()).value.id, "3-0");
    assert.ok(reasons.length > 0 && reasons.every((one) => ["deleted", "recreated"].includes(one)), reasons.join());
    await tail.return();
  }
});

for (const via of ["websocket", "long-poll"]) {
  const work = async (more = {}) => {
    const stream = fresh();
    await client.publish(stream, { n: 0 }, { id: "7-0" });
    const [done, gaps, holds] = [[], [], {}];
    const options = { stream, group: "g", consumer: "c", via, webSocket, onGap: (gap) => gaps.push(gap), ...more };
    const worker = new Worker(url, options);
    const running = worker.run(async ({ entry }) => {
      done.push(entry.fields.n);
      await holds[entry.fields.n];
    });
    // Its end is looked at below.
    running.catch(() => undefined);
    return { stream, done, gaps, holds, worker, running };
  };

  test(`a stream or a group that is deleted ends the worker, ${via}`, async () => {
    for (const [end, remove] of [
      [StreamDeletedError, (stream) => client.deleteStream(stream)],
      [GroupDeletedError, (stream) => client.group(stream, "g").delete(true)],
    ]) {
      const { stream, running } = await work();
      await until(settled(stream));
      await remove(stream);
      await assert.rejects(running, (error) => error.constructor === end && error.status === 404);
    }
  });

  test(`what is settled after the end of its stream ends the worker, ${via}`, async () => {
    const { stream, done, holds, running } = await work({ credit: 1 });
    let release;
    holds[0] = new Promise((resolve) => (release = resolve));
    await until(() => done.length === 1);
    await client.deleteStream(stream);
    release();
    await assert.rejects(running, StreamDeletedError);
  });

  test(`a worker goes on with the stream that is made again, ${via}`, async () => {
    const { stream, done, gaps, worker, running } = await work({ onGone: "recreate" });
    await until(settled(stream));
    await client.deleteStream(stream);
    await client.publish(stream, { n: 1 }, { id: "3-0" });
    await until(() => done.length === 2);
    await client.publish(stream, { n: 2 }, { id: "4-0" });
    await until(() => done.length === 3);
    worker.stop();
    await running;
    assert.deepEqual(done, ["0", "1", "2"]);
    assert.deepEqual(gaps.map(({ requested, reason }) => [requested, reason]), [["7-0", "recreated"]]);
  });

  test(`what is held of an old stream settles nothing of the new one, ${via}`, async () => {
    const { stream, done, gaps, holds, worker, running } = await work({ onGone: "recreate" });
    const releases = {};
    for (const n of [0, 1]) holds[n] = new Promise((resolve) => (releases[n] = resolve));
    await until(() => done.length === 1);
    await client.deleteStream(stream);
    await client.publish(stream, { n: 1 }, { id: "7-0" });
    await until(() => gaps.length === 1);
    releases[0]();
    await until(() => done.length === 2);
    assert.deepEqual((await collect(client.group(stream, "g").pending())).map(({ id }) => id), ["7-0"]);
    releases[1]();
    await until(settled(stream));
    worker.stop();
    await running;
  });

  test(`a worker that stops makes nothing again, ${via}`, async () => {
    const { stream, done, gaps, holds, worker, running } = await work({ onGone: "recreate" });
    let release;
    holds[0] = new Promise((resolve) => (release = resolve));
    await until(() => done.length === 1);
    worker.stop();
    await client.deleteStream(stream);
    release();
    await running;
    assert.equal(await client.getStream(stream), undefined);
    assert.deepEqual(gaps, []);
  });
}

test("each end of a subscription is an error of its own", async () => {
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1", handleProtocols: () => "weir.v1" });
  await new Promise((resolve) => server.on("listening", resolve));
  const options = { stream: "s", group: "g", consumer: "c", webSocket };
  try {
    for (const [reason, name] of [
      ["replaced", "ConsumerReplacedError"],
      ["stream_deleted", "StreamDeletedError"],
      ["group_destroyed", "GroupDeletedError"],
      ["forbidden", "ForbiddenError"],
      ["of_tomorrow", "WeirError"],
    ]) {
      server.removeAllListeners("connection");
      server.on("connection", (socket) => socket.send(JSON.stringify({ op: "revoked", sub: "work", reason })));
      const worker = new Worker(`http://127.0.0.1:${server.address().port}`, options);
      await assert.rejects(worker.run(() => undefined), { name });
    }
    for (const [code, status, name] of [[4500, 401, "ApiError"], [4502, 403, "ForbiddenError"], [4501, undefined, "ConnectionClosedError"]]) {
      server.removeAllListeners("connection");
      server.on("connection", (socket) => socket.close(code, "because"));
      const worker = new Worker(`http://127.0.0.1:${server.address().port}`, options);
      await assert.rejects(worker.run(() => undefined), (error) => error.name === name && error.status === status);
    }
  } finally {
    server.close();
  }
});

test("a refusal with 403 is a ForbiddenError, and a gap of an unknown reason is a gap", async () => {
  const refuse = async () => new Response(JSON.stringify({ code: "forbidden", detail: "no" }), { status: 403 });
  await assert.rejects(new Client({ url, fetch: refuse }).getStream("s"), ForbiddenError);
  const gap = { requested: "5-0", first_available: "7-0", lost: null, reason: "of_tomorrow" };
  const events = async () =>
    new Response(`event: gap\ndata: ${JSON.stringify(gap)}\n\n`, { headers: { "content-type": "text/event-stream" } });
  const tail = new Client({ url, fetch: events }).tail("s");
  await assert.rejects(tail.next(), { name: "GapError", message: "some entries of s after 5-0 were lost (of_tomorrow)" });
});

test("a second worker of the same name ends the first", async () => {
  const stream = fresh();
  const options = { stream, group: "g", consumer: "c", webSocket };
  await client.publish(stream, { n: 0 });
  const first = new Worker(url, options).run(() => undefined);
  await until(settled(stream));
  const second = new Worker(url, options);
  const running = second.run(() => undefined);
  await assert.rejects(first, ConsumerReplacedError);
  second.stop();
  await running;
});

test("a request that is refused with 429 is sent again after Retry-After", async () => {
  for (const [after, leastMs, mostMs] of [["0", 0, 900], ["1", 990, 5_000]]) {
    const came = [];
    const server = createServer((request, response) => {
      came.push(performance.now());
      request.resume();
      if (came.length === 1) {
        response.writeHead(429, { "content-type": "application/problem+json", "retry-after": after });
        response.end(JSON.stringify({ code: "rate_limited", status: 429, retryable: true }));
      } else {
        response.writeHead(201, { "content-type": "application/json" });
        response.end(JSON.stringify({ id: "5-1", duplicate: false }));
      }
    });
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    try {
      const limited = new Client({ url: `http://127.0.0.1:${server.address().port}` });
      assert.deepEqual((await limited.publish("s", { a: "1" })).ids, ["5-1"]);
      assert.equal(came.length, 2);
      const tookMs = came[1] - came[0];
      assert.ok(tookMs >= leastMs && tookMs < mostMs, `${after}: ${tookMs} ms`);
    } finally {
      server.closeAllConnections();
      server.close();
    }
  }
});
