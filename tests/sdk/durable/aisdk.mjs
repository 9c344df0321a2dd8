// A chat of the AI SDK whose answer goes through a gateway: the transport of Durable Streams writes and reads it.
import { createDurableChatTransport, toDurableStreamResponse } from "@durable-streams/aisdk-transport"
import { AbstractChat } from "ai"
import { tokens } from "./pace.mjs"

const url = `${process.env.URL}/v1/stream/chats/aisdk`

// What `useChat` of @ai-sdk/react is, without React.
class Chat extends AbstractChat {
  constructor(transport) {
    const state = {
      status: "ready",
      messages: [],
      pushMessage: (message) => state.messages.push(message),
      popMessage: () => state.messages.pop(),
      replaceMessage: (index, message) => (state.messages[index] = message),
      snapshot: structuredClone,
    }
    super({ id: "aisdk", transport, state })
  }
}

const textOf = (message) => message.parts.map((part) => part.text ?? "").join("")

async function* answer() {
  yield { type: "start", messageId: "answer" }
  yield { type: "text-start", id: "text" }
  for await (const delta of tokens(() => textOf(chat.lastMessage))) yield { type: "text-delta", id: "text", delta }
  yield { type: "text-end", id: "text" }
  yield { type: "finish" }
}

// The application's server, in this process: it takes a question, and says where an answer is.
async function serve(_, { method }) {
  if (method !== "POST") return Response.json({ streamUrl: url })
  return toDurableStreamResponse({ source: answer(), stream: { writeUrl: url } })
}

const chat = new Chat(createDurableChatTransport({ api: "http://chat.invalid/api", fetchClient: serve }))
await chat.sendMessage({ text: "count" })
// It comes again from its beginning.
while (chat.status === "error") {
  chat.messages = chat.messages.filter((message) => message.id !== "answer")
  await chat.resumeStream()
}
console.log(JSON.stringify(chat.messages.map(textOf)))
process.exit(0)
