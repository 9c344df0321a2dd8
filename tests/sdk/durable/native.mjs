// Reads a stream to its end: prints what was read, and the error that ended it. It waits behind the first entry.
import { once } from "node:events"
import { stream } from "@durable-streams/client"

const { URL: url, LIVE: live } = process.env
const items = []

async function take(item) {
  items.push(item)
  if (items.length > 1) return
  console.log("first")
  await once(process.stdin, "data")
}

// Without `live` one session of theirs is one page.
async function readPages() {
  let page
  do {
    page = await stream({ url, offset: page?.offset, live: false })
    for (const item of await page.json()) await take(item)
  } while (!page.upToDate)
}

async function follow() {
  const reading = await stream({ url, live })
  // It fails as reading does.
  reading.closed.catch(() => {})
  for await (const item of reading.jsonStream()) await take(item)
}

let error = null
try {
  await (live === "pages" ? readPages() : follow())
} catch ({ status, text }) {
  error = { status, code: JSON.parse(text).code }
}
process.stdout.write(JSON.stringify({ items, error }), () => process.exit(0))
