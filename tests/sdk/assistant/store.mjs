// Stands in for assistant-ui's store in memory in assistant-ui's own tests: the gateway's, where a test gives it no clock and
// no limits of its own.
import { randomUUID } from "node:crypto"
import { createInMemoryResumableStreamStore as inMemory } from "./original"

const { WeirResumableStreamStore } = await import(process.env.WEIR_RESUMABLE)
const METHODS = ["acquire", "acquireLease", "append", "finalize", "read", "status", "delete"]

export function createInMemoryResumableStreamStore(options) {
  if (options !== undefined) return inMemory(options)
  const store = new WeirResumableStreamStore({ url: process.env.WEIR_URL, prefix: `${randomUUID()}:` })
  // Some of them take a method without its object.
  const methods = Object.fromEntries(METHODS.map((name) => [name, store[name].bind(store)]))
  return { ...methods, dispose() {} }
}
