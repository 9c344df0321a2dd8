// Answers that survive a reload: what `resumable-stream` offers, and the store for assistant-ui, over a gateway.
import assert from "node:assert/strict"
import { randomUUID } from "node:crypto"
import { test } from "node:test"

const { createResumableStreamContext, WeirResumableStreamStore } = await import(
  new URL("resumable.js", process.env.WEIR_CLIENT)
)
const url = process.env.WEIR_URL
const prefix = `${randomUUID()}:`
const tasks = []
// As in as many processes.
const context = () => createResumableStreamContext({ url, prefix, waitUntil: (task) => tasks.push(task) })
const store = () => new WeirResumableStreamStore({ url, prefix })
const text = async (stream) => (await collect(stream)).join("")

async function collect(stream) {
  const found = []
  for await (const one of stream) found.push(one)
  return found
}

/** An answer in pieces; what it is told after the first one ends it. */
function model(pieces, goOn = Promise.resolve()) {
  return () =>
    new ReadableStream({
      async start(controller) {
        controller.enqueue(pieces[0])
        await goOn
        for (const piece of pieces.slice(1)) controller.enqueue(piece)
        controller.close()
      },
    })
}

test("an answer is produced once, resumed behind what was seen, and over when it has ended", async () => {
  const id = randomUUID()
  assert.equal(await context().hasExistingStream(id), null)
  assert.equal(await context().resumeExistingStream(id), undefined)
  const { promise, resolve } = withResolvers()
  const first = await context().resumableStream(id, model(["Grüße 🌍, ", "again ", "and again"], promise))
  const never = () => assert.fail("it is produced already")
  const second = await context().resumableStream(id, never)
  const third = await context().resumeExistingStream(id, "Grüße ".length)
  assert.equal(await context().hasExistingStream(id), true)
  // A browser that leaves ends nothing.
  const left = await context().resumeExistingStream(id)
  await left.cancel()
  resolve()
  assert.equal(await text(first), "Grüße 🌍, again and again")
  assert.equal(await text(second), "Grüße 🌍, again and again")
  assert.equal(await text(third), "🌍, again and again")
  await Promise.all(tasks)
  assert.equal(await context().hasExistingStream(id), "DONE")
  assert.equal(await context().resumeExistingStream(id), null)
  assert.equal(await context().resumableStream(id, never), null)
  const anew = await context().createNewResumableStream(id, model(["anew"]))
  assert.equal(await text(anew), "anew")
})

test("an error of the model reaches those that read", async () => {
  const id = randomUUID()
  const failing = () => new ReadableStream({ start: (controller) => controller.error(new Error("the model is away")) })
  const stream = await context().resumableStream(id, failing)
  await assert.rejects(text(stream), /the model is away/)
})

test("a producer whose answer was begun anew writes nothing, with the same store too", async () => {
  const one = store()
  const bytes = (word) => new TextEncoder().encode(word)
  const a = await one.acquireLease("s")
  await one.append("s", bytes("old"), a.lease)
  await one.delete("s")
  const b = await one.acquireLease("s")
  assert.equal(await store().acquire("s"), "consumer")
  await one.append("s", bytes("new"), b.lease)
  await assert.rejects(one.append("s", bytes("stale"), a.lease), { code: "missing" })
  assert.equal(await one.finalize("s", "done", undefined, a.lease), false)
  await store().append("s", Uint8Array.of(0, 255))
  assert.equal(await one.finalize("s", "done", undefined, b.lease), true)
  assert.equal(await one.finalize("s", "done", undefined, b.lease), false)
  await assert.rejects(one.append("s", bytes("late"), a.lease), { code: "missing" })
  await assert.rejects(one.append("s", bytes("late"), b.lease), { code: "finalized" })
  const read = await collect(store().read("s", "", new AbortController().signal))
  assert.deepEqual(read.map(({ chunk }) => [...chunk]), [[...bytes("new")], [0, 255]])
  const rest = await collect(store().read("s", read[0].cursor, new AbortController().signal))
  assert.equal(rest.length, 1)
  await one.delete("s")
  assert.equal(await one.status("s"), "missing")
  await assert.rejects(one.finalize("s", "done"), /not found/)
  await assert.rejects(one.append("s", bytes("x")), /not found/)
  await assert.rejects(one.status("a/b"), { code: "invalid-id" })
})

test("a reader ends when it is told to, and when the answer is deleted", async () => {
  const one = store()
  await one.acquire("waiting")
  const stopping = new AbortController()
  setTimeout(() => stopping.abort(), 200)
  assert.deepEqual(await collect(one.read("waiting", "", stopping.signal)), [])
  setTimeout(() => one.delete("waiting"), 200)
  assert.deepEqual(await collect(one.read("waiting", "", new AbortController().signal)), [])
})

function withResolvers() {
  let resolve
  const promise = new Promise((found) => (resolve = found))
  return { promise, resolve }
}
