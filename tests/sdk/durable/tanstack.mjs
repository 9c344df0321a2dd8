// A chat of TanStack AI whose session is a stream: the transport of Durable Streams writes and reads it.
import { setTimeout } from "node:timers/promises"
import {
  durableStreamConnection,
  ensureDurableChatSessionStream,
  toDurableChatSessionResponse,
} from "@durable-streams/tanstack-ai-transport"
import { ChatClient } from "@tanstack/ai-client"
import { tokens } from "./pace.mjs"

const stream = { writeUrl: `${process.env.URL}/v1/stream/chats/tanstack` }
const textOf = (message) => message.parts.map((part) => part.content ?? "").join("")
const lastText = () => textOf(client.getMessages().at(-1))

async function* answer() {
  const run = { runId: "run", threadId: "thread", model: "counting", timestamp: Date.now() }
  yield { type: "RUN_STARTED", ...run }
  yield { type: "TEXT_MESSAGE_START", messageId: "answer", role: "assistant" }
  for await (const delta of tokens(lastText)) yield { type: "TEXT_MESSAGE_CONTENT", messageId: "answer", delta }
  yield { type: "TEXT_MESSAGE_END", messageId: "answer" }
  yield { type: "RUN_FINISHED", ...run, finishReason: "stop" }
}

// The application's server, in this process.
async function serve(_, { body }) {
  const newMessages = JSON.parse(body).messages.slice(-1)
  return toDurableChatSessionResponse({ stream, newMessages, responseStream: answer() })
}

await ensureDurableChatSessionStream(stream)
const connection = durableStreamConnection({
  sendUrl: "http://chat.invalid/api",
  readUrl: stream.writeUrl,
  fetchClient: serve,
})

// It knows where it is, and reads on from there.
async function* subscribe(signal) {
  while (!signal.aborted) {
    try {
      yield* connection.subscribe(signal)
    } catch (error) {
      console.error(error.message)
    }
    await setTimeout(50)
  }
}

const client = new ChatClient({ connection: { ...connection, subscribe } })
client.subscribe()
await client.sendMessage("count")
while (client.getStatus() !== "ready") await setTimeout(10)
console.log(JSON.stringify(client.getMessages().map(textOf)))
process.exit(0)
