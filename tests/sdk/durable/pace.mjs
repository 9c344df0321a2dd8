// A model that stops halfway, once its tokens are stored and read, and goes on when it is asked to.
import { once } from "node:events"
import { setTimeout } from "node:timers/promises"

const COUNT = Number(process.env.COUNT)

// When a connection breaks, the client rejects a promise of its own, too.
process.on("unhandledRejection", (error) => console.error(error.message))

// The transports append without a number, so a batch whose answer was lost would come twice.
let appending = 0
const plain = globalThis.fetch
globalThis.fetch = async (input, init) => {
  if (init?.method !== "POST") return plain(input, init)
  appending += 1
  try {
    return await plain(input, init)
  } finally {
    appending -= 1
  }
}

export async function* tokens(read) {
  for (let number = 0; number < COUNT; number += 1) {
    if (number === COUNT / 2) {
      while (appending || !read().endsWith(` ${number - 1}`)) await setTimeout(10)
      console.log("half")
      await once(process.stdin, "data")
    }
    yield ` ${number}`
  }
}
