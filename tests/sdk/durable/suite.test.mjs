// The public suite for servers of Durable Streams, run against URL; with TOKEN, as a caller that has one.
import { runConformanceTests } from "@durable-streams/server-conformance-tests"

const { URL: url, TOKEN: token } = process.env
if (token) {
  const plain = globalThis.fetch
  globalThis.fetch = (input, init = {}) => {
    const headers = new Headers(init.headers ?? (input instanceof Request ? input.headers : undefined))
    headers.set("authorization", `Bearer ${token}`)
    return plain(input, { ...init, headers })
  }
}

runConformanceTests({ baseUrl: url, longPollTimeoutMs: 1000 })
