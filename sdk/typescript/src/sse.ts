/** Server-sent events, as WHATWG HTML has them: text in, events out. Lines end at LF, CRLF or CR only. */

export interface ServerEvent {
  name: string;
  data: string;
  id?: string;
  retryMs?: number;
}

export class EventParser {
  #rest = "";
  #event: Partial<ServerEvent> & { lines: string[] } = { lines: [] };
  #empty = true;

  *feed(text: string): Generator<ServerEvent> {
    let buffer = this.#rest + text;
    // A CR at the end may be half of a CRLF.
    const held = buffer.endsWith("\r") ? "\r" : "";
    buffer = buffer.slice(0, buffer.length - held.length);
    const lines = buffer.split(/\r\n|\n|\r/);
    this.#rest = (lines.pop() ?? "") + held;
    for (const line of lines) {
      if (line !== "") this.#line(line);
      else if (!this.#empty) {
        const { lines: data, name = "message", ...rest } = this.#event;
        yield { ...rest, name, data: data.join("\n") };
        this.#event = { lines: [] };
        this.#empty = true;
      }
    }
  }

  #line(line: string): void {
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.#event.name = value;
    else if (field === "data") this.#event.lines.push(value);
    else if (field === "id" && !value.includes("\0")) this.#event.id = value;
    else if (field === "retry" && /^\d+$/.test(value)) this.#event.retryMs = Number(value);
    else return;
    this.#empty = false;
  }
}
