"""Requests whose plans may be kept, and those of which something is unusual, as bytes.

Knows: a stream `s` with a group `g`, and a stream `big`. Must never know: what the answers should be.
"""

import json

from engine.commands.turn import TURN_LOOKUPS_MAX
from tests.app.pair import HOST
from tests.bounds import bounded

# An origin whose pages may call.
ALLOWED = "https://pages.example"

LIMITS = bounded(
    port=0,
    log_requests="none",
    body_bytes_max=64 << 10,
    entry_bytes_max=8 << 10,
    entry_fields_max=16,
    batch_entries_max=100,
    allowed_origins=(ALLOWED,),
    # Longer than any test on a slow machine takes for what it sends on lines that it has opened.
    request_s_max=30,
    keep_alive_s=30,
)
JSON = "Content-Type: application/json"
NDJSON = "Content-Type: application/x-ndjson"
ENTRIES = "/v1/streams/s/entries"
GROUP = "/v1/streams/s/groups/g"
READ = f"{GROUP}/consumers/c/read"
COMMANDS = "/v1/commands"
ENTRY = b'{"fields":{"a":"1"}}'


def request(line: str, body: bytes | None = None, *headers: str) -> bytes:
    length = () if body is None else (f"Content-Length: {len(body)}",)
    head = "".join(f"{header}\r\n" for header in (*headers, *length))
    return line.encode() + b" HTTP/1.1\r\n" + HOST + head.encode("latin-1") + b"\r\n" + (body or b"")


def post(path: str, body: bytes, *headers: str) -> bytes:
    return request(f"POST {path}", body, *(headers or (JSON,)))


def deletion(count: int) -> bytes:
    """An acknowledgement of this number of IDs that deletes."""
    return json.dumps({"ids": [f"7-{number}" for number in range(count)], "delete": "keep"}).encode()


PLAIN = {
    "entry": post(ENTRIES, ENTRY),
    "entry with blanks": post(ENTRIES, b'{ "fields" : {"a":"1"} }'),
    "entry over lines": post(ENTRIES, b'{"fields":{\n"a":"1"}}'),
    "entry of numbers": post(ENTRIES, b'{"fields":{"a":1.50,"b":true}}'),
    "entry of another script": post("/v1/streams/%E6%B5%81/entries", '{"fields":{"ключ":"值"}}'.encode()),
    "batch": post(ENTRIES, b'{"entries":[{"fields":{"a":"1"}},{"fields":{"b":"2"}}]}'),
    "rows": post(ENTRIES, b'{"a":"1"}\n{"b":2}\n', NDJSON),
    "minimal": post(ENTRIES, b'{"a":"1"}\n{"b":2}\n', NDJSON, "Prefer: return=minimal"),
    "trimming": post(f"{ENTRIES}?maxlen=50&approx=false", ENTRY),
    "charset": post(ENTRIES, ENTRY, "content-type: Application/JSON; charset=utf-8"),
    "browser": post(ENTRIES, ENTRY, JSON, "Accept: */*", "Accept-Language: *", "Connection: keep-alive"),
    "form": post(ENTRIES, b"a=1&b=2", "Content-Type: application/x-www-form-urlencoded"),
    "key": post(ENTRIES, ENTRY, JSON, "Idempotency-Key: k-1"),
    "tail from the beginning": request(f"GET {ENTRIES}?after=0&count=3"),
    "tail": request(f"GET {ENTRIES}?after=1000-2&count=2", None, "Accept: application/json"),
    "tail of now": request(f"GET {ENTRIES}?after=$&wait=0"),
    "a slash in the name": request("GET /v1/streams/a%2Fb/entries"),
    "into a name with a slash": post("/v1/streams/a%2fb%2Fc/entries", ENTRY),
    "range": request(f"GET {ENTRIES}?count=2"),
    "page of Durable Streams": request("GET /v1/stream/s?offset=-1"),
    "append of Durable Streams to another stream": post("/v1/stream/s", b"1", JSON, "Stream-Seq: 1"),
    "nothing": request("GET /v1/streams/none/entries?after=0"),
    "group read": post(READ, b'{"count":2}'),
    "group read without a body": request(f"POST {READ}", b""),
    "history": post(READ, b'{"after":"0"}'),
    "ack": post(f"{GROUP}/ack", b'{"ids":["1000-0","1000-1","1-1"]}'),
    "ack and delete": post(f"{GROUP}/ack", b'{"ids":["1000-2"],"delete":"acked"}'),
    "ack and delete of as many as one turn takes": post(f"{GROUP}/ack", deletion(TURN_LOOKUPS_MAX)),
    "ack and delete of one more": post(f"{GROUP}/ack", deletion(TURN_LOOKUPS_MAX + 1)),
    "ack of nothing": post(f"{GROUP}/ack", b'{"ids":["5-5"]}'),
    "an entry": request(f"GET {ENTRIES}/1000-0"),
    "an entry that is not there": request(f"GET {ENTRIES}/5-5"),
    "stream": request("GET /v1/streams/s"),
    "stream in full": request("GET /v1/streams/s?full=true&count=2"),
    "a stream that is not there": request("GET /v1/streams/none"),
    "groups": request("GET /v1/streams/s/groups"),
    "groups of none": request("GET /v1/streams/none/groups"),
    "a group": request(f"GET {GROUP}"),
    "consumers": request(f"GET {GROUP}/consumers"),
    "pending": request(f"GET {GROUP}/pending"),
    "pending, one by one": request(f"GET {GROUP}/pending?limit=2"),
    "nack": post(f"{GROUP}/nack", b'{"ids":["1000-1"]}'),
    "live": request("GET /healthz/live"),
    "ready": request("GET /healthz/ready"),
    "command": post(COMMANDS, b'["XLEN","s"]'),
    "command that changes": post(COMMANDS, b'["XADD","s","*","a","1"]'),
    "command of a long reply": post(COMMANDS, b'["XRANGE","big","-","+"]'),
    "command that asks for many names": post(COMMANDS, b'["KEYS","*"]'),
    "command that is none": post(COMMANDS, b'["NONE"]'),
    "command without words": post(COMMANDS, b"[]"),
    "command with an ID too small": post(COMMANDS, b'["XADD","s","1-1","a","1"]'),
    "not JSON": post(ENTRIES, b"{"),
    "no entry": post(ENTRIES, b'{"a":"1"}'),
    "no fields": post(ENTRIES, b'{"fields":{}}'),
    "a name twice": post(ENTRIES, b'{"fields":{"a":"1","a":"2"}}'),
    "a member too many": post(ENTRIES, b'{"fields":{"a":"1"},"b":1}'),
    "its own ID, too small": post(ENTRIES, b'{"fields":{"a":"1"},"id":"1-1"}'),
    "many fields": post(ENTRIES, json.dumps({"fields": {str(i): "" for i in range(17)}}).encode()),
    "large entry": post(ENTRIES, b'{"fields":{"a":"%b"}}' % (b"x" * 9_000)),
    "large batch": post(ENTRIES, b'{"a":"1"}\n' * 101, NDJSON),
    "bad row": post(ENTRIES, b'{"a":"1"}\n{"a":\n', NDJSON),
    "unknown parameter": post(f"{ENTRIES}?a=1", ENTRY),
    "another charset": post(ENTRIES, ENTRY, f"{JSON}; charset=latin-1"),
    "count of nothing": request(f"GET {ENTRIES}?count=0"),
    "bad ID": request(f"GET {ENTRIES}?after=1_0"),
    "no group": post("/v1/streams/s/groups/none/consumers/c/read", b"{}"),
    "no stream": post("/v1/streams/none/groups/g/consumers/c/read", b"{}"),
    "ack without a group": post("/v1/streams/s/groups/none/ack", b'{"ids":["5-5"]}'),
    "ack without IDs": post(f"{GROUP}/ack", b"{}"),
    "waiting group read": post(READ, b'{"wait":1}'),
    "bad member": post(READ, b'{"count":"2"}'),
}
# What asks for more than its head tells at first sight.
ASKING = {
    "an origin that may": post(ENTRIES, ENTRY, JSON, f"Origin: {ALLOWED}"),
    "a key that is not plain": post(ENTRIES, ENTRY, JSON, "Idempotency-Key: \xe9"),
    "a condition that is not plain": post(ENTRIES, ENTRY, JSON, "If-Match: \xe9"),
    "a producer": post(ENTRIES, ENTRY, JSON, "Weir-Producer: p", "Weir-Epoch: 0", "Weir-Chunk: 0"),
    "kept alive": post(ENTRIES, ENTRY, JSON, "Connection: keep-alive"),
    "larger than bodies may be": post(ENTRIES, b'{"fields":{"a":"%b"}}' % (b"x" * 15_000)),
}
UNUSUAL = {
    "HEAD": request(f"HEAD {ENTRIES}?count=2"),
    "another method": request(f"PUT {ENTRIES}", b""),
    "waiting read": request(f"GET {ENTRIES}?after=$&wait=1"),
    "waiting command": post(COMMANDS, b'["XREAD","BLOCK","1","STREAMS","s","$"]'),
    "commands": post(f"{COMMANDS}/pipeline", b'[["XLEN","s"],["XADD","s","*","a","1"]]'),
    "transaction": post(f"{COMMANDS}/multi-exec", b'[["XLEN","s"],["XADD","s","*","a","1"]]'),
    "another method of a word in the place of a name": request(f"GET {ENTRIES}/delete"),
    "another tag": request(f"GET {ENTRIES}/1000-0", None, 'If-None-Match: "1000-0"'),
    "not modified": request(f"GET {ENTRIES}/1000-0", None, "If-None-Match: *"),
    "synced": post(ENTRIES, ENTRY, JSON, "Prefer: durability=fsync"),
    "own request ID": post(ENTRIES, ENTRY, JSON, "Weir-Request-Id: mine"),
    "origin": post(ENTRIES, ENTRY, JSON, "Origin: http://evil.example"),
    "own origin": post(ENTRIES, ENTRY, JSON, "Origin: http://localhost"),
    "another header": post(ENTRIES, ENTRY, JSON, "X-Forwarded-For: 10.0.0.1"),
    "a type twice": post(ENTRIES, ENTRY, JSON, NDJSON),
    "an accept of much": request(f"GET {ENTRIES}?count=1", None, "Accept: text/html, application/json;q=0.5"),
    "a type that the gateway has not": request(f"GET {ENTRIES}?count=1", None, "Accept: text/html"),
    "an export": request(f"GET {ENTRIES}?count=2", None, "Accept: application/x-ndjson"),
    "coded body": post(ENTRIES, ENTRY, JSON, "Content-Encoding: gzip"),
    "fragment": request(f"GET {ENTRIES}#a"),
    "absolute": request(f"GET http://localhost{ENTRIES}?count=1"),
    "slash at the end": request(f"GET {ENTRIES}/"),
    "empty name": request("GET /v1/streams//entries"),
    "dots": request("GET /v1/streams/../entries"),
    "nothing between slashes": request("GET /v1/streams/a%2F%2Fb/entries"),
    "no UTF-8": request("GET /v1/streams/%ff/entries"),
    "half an escape": request("GET /v1/streams/%f/entries"),
    "another version": b"GET /v1/streams/s/entries HTTP/1.0\r\n" + HOST + b"\r\n",
    "no version": b"GET /v1/streams/s/entries\r\n" + HOST + b"\r\n",
    "no Host": b"GET /v1/streams/s/entries HTTP/1.1\r\n\r\n",
    "two Hosts": b"GET /v1/streams/s/entries HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    "another Host": b"GET /v1/streams/s/entries HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "blank before a colon": b"GET /v1/streams/s/entries HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "folded": b"GET /v1/streams/s/entries HTTP/1.1\r\n" + HOST + b" folded\r\n\r\n",
    "bare line ends": b"GET /v1/streams/s/entries HTTP/1.1\nHost: localhost\n\n",
    "signed length": request(f"POST {ENTRIES}", None, JSON, "Content-Length: +3") + b"abc",
    "two lengths": request(f"POST {ENTRIES}", None, JSON, "Content-Length: 3", "Content-Length: 3") + b"abc",
    "length and chunks": request(
        f"POST {ENTRIES}", None, JSON, "Content-Length: 3", "Transfer-Encoding: chunked"
    ),
    "too large": request(f"POST {ENTRIES}", None, JSON, "Content-Length: 70000"),
    "expecting": post(ENTRIES, ENTRY, JSON, "Expect: 100-continue"),
    "closing": post(ENTRIES, ENTRY, JSON, "Connection: close"),
    "upgrade": request(f"GET {ENTRIES}", None, "Connection: upgrade", "Upgrade: h2c"),
}
