// What a user of @upstash/redis does with streams, against the command API whose URL is the argument.
import assert from "node:assert/strict";
import { Redis } from "@upstash/redis";

const redis = new Redis({ url: process.argv[2], token: "none", enableTelemetry: false, retry: false });

await redis.del("js");
assert.equal(await redis.xadd("js", "1-1", { name: "äpfel", n: 1 }), "1-1");
assert.match(await redis.xadd("js", "*", { name: "pear" }), /^\d+-\d+$/);
assert.equal(await redis.xlen("js"), 2);
assert.deepEqual((await redis.xrange("js", "-", "+"))["1-1"], { name: "äpfel", n: 1 });
assert.deepEqual(Object.values(await redis.xrevrange("js", "+", "-", 1)), [{ name: "pear" }]);
assert.equal((await redis.xread("js", "1-1"))[0][0], "js");
assert.equal(await redis.xread("js", "99999999999999-0", { blockMS: 50 }), null);

assert.equal(await redis.xgroup("js", { type: "CREATE", group: "g", id: "0" }), "OK");
const [[stream, entries]] = await redis.xreadgroup("g", "alice", "js", ">", { count: 10 });
assert.deepEqual([stream, entries.length], ["js", 2]);
assert.equal((await redis.xpending("js", "g", "-", "+", 10)).length, 2);
assert.deepEqual((await redis.xautoclaim("js", "g", "bob", 0, "0-0", { justId: true }))[1].length, 2);
assert.equal(await redis.xack("js", "g", "1-1"), 1);
assert.equal((await redis.xinfo("js", { type: "GROUPS" })).length, 1);
await assert.rejects(redis.xgroup("js", { type: "CREATE", group: "g", id: "0" }), /BUSYGROUP/);

assert.deepEqual(await redis.pipeline().xlen("js").xdel("js", "1-1").exec(), [2, 1]);
assert.deepEqual(await redis.multi().xadd("js", "99999999999999-0", { a: "b" }).xlen("js").exec(), ["99999999999999-0", 2]);
assert.equal(await redis.xtrim("js", { strategy: "MAXLEN", exactness: "=", threshold: 0 }), 2);
console.log("all agree");
