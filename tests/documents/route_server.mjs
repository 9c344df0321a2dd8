// Serves a route handler of Next.js as Next.js does, by four processes behind one port: node route_server.mjs PORT
import cluster from "node:cluster"
import { createServer } from "node:http"
import { Readable } from "node:stream"
import { pathToFileURL } from "node:url"

const PROCESSES = 4

async function serve(port) {
  const route = await import(pathToFileURL("route.mjs"))
  createServer(async (request, response) => {
    const leaving = new AbortController()
    response.on("close", () => leaving.abort())
    const id = request.url.split("/")[2]
    const body = request.method === "POST" ? Readable.toWeb(request) : null
    const asked = new Request(`http://localhost${request.url}`, {
      method: request.method, body, duplex: "half", signal: leaving.signal,
    })
    const answer = await route[request.method](asked, { params: Promise.resolve({ id }) })
    response.writeHead(answer.status, Object.fromEntries(answer.headers))
    response.flushHeaders()
    if (answer.body) Readable.fromWeb(answer.body).on("error", () => response.destroy()).pipe(response)
    else response.end()
  }).listen(port, "127.0.0.1")
}

if (cluster.isPrimary) for (let number = 0; number < PROCESSES; number += 1) cluster.fork()
else await serve(Number(process.argv[2]))
