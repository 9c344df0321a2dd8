// Writes tokens with the client's own producer, reads them with its own reader, and prints what was read.
import { setTimeout } from "node:timers/promises"
import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client"

const { URL: base, LIVE: live, COUNT: count } = process.env
const url = `${base}/v1/stream/tokens/${live}`
const handle = await DurableStream.create({ url, contentType: "application/json" })

const read = []

// A connection that breaks is its caller's to take up again, where the last batch has left off.
async function readToTheEnd() {
  let offset = "-1"
  for (let isOver = false; !isOver; ) {
    try {
      const reading = await stream({ url, offset, live })
      reading.subscribeJson(async (batch) => {
        read.push(...batch.items)
        offset = batch.offset
        isOver = batch.streamClosed
      })
      await reading.closed
    } catch (error) {
      console.error(error.message)
    }
    await setTimeout(50)
  }
}

const over = readToTheEnd()

// The producer leaves it to its `fetch` to send a batch again.
async function insisting(input, init) {
  for (;;) {
    try {
      const answer = await fetch(input, init)
      if (answer.status !== 503) return answer
    } catch (error) {
      console.error(error.message)
    }
    await setTimeout(50)
  }
}

const onError = (error) => console.error(error)
const producer = new IdempotentProducer(handle, "writer", { lingerMs: 1, fetch: insisting, onError })
for (let number = 0; number < Number(count); number += 1) {
  producer.append(JSON.stringify({ token: number }))
  await setTimeout(10)
}
await producer.flush()
await producer.close()
await over
console.log(JSON.stringify(read.map((one) => one.token)))
process.exit(0)
