"""Writes the types of the TypeScript client, which openapi-typescript generates from the API's documents.

Knows: what of these documents the client needs. Must never know: what the client does with it.
The only argument is the directory that the files are written to.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import orjson

from app.main import create_app
from app.openapi import asyncapi
from app.settings import Settings

Json = dict[str, Any]

_ROOT: Final = Path(__file__).parents[1]
_GENERATOR: Final = _ROOT / "tests" / "sdk" / "node_modules" / ".bin" / "openapi-typescript"
_JSON: Final = "application/json"


def rest() -> Json:
    """The OpenAPI document without refusals, which are all one type, and without what is not JSON."""
    document: Json = orjson.loads(create_app(Settings()).gateway.document())
    del document["components"]["responses"]
    for methods in document["paths"].values():
        for operation in methods.values():
            successes = (found for status, found in operation["responses"].items() if status[0] == "2")
            operation["responses"] = {"200": _json_of(next(successes))}
            if body := operation.get("requestBody"):
                operation["requestBody"] = body | _json_of(body)
    return document


def socket() -> Json:
    """The frames of the AsyncAPI document, as an OpenAPI document: the generator reads no other."""
    document: Json = orjson.loads(asyncapi.document(Settings()))
    schemas = document["components"]["schemas"]
    return {
        "openapi": "3.1.0",
        "info": document["info"],
        "paths": {},
        "components": {"schemas": schemas},
    }


def _json_of(described: Json) -> Json:
    """A body or an answer with its JSON alone; an answer without JSON is null, as the client returns it."""
    content = described.get("content", {}).get(_JSON, {"schema": {"type": "null"}})
    return {"description": described.get("description", ""), "content": {_JSON: content}}


def main(directory: str) -> None:
    """Write `openapi.ts` and `asyncapi.ts`."""
    for name, document in ("openapi", rest()), ("asyncapi", socket()):
        file = Path(directory) / f"{name}.ts"
        json = file.with_suffix(".json")
        json.write_bytes(orjson.dumps(document))
        try:
            subprocess.run(["node", _GENERATOR, json, "--immutable", "--output", file], check=True)
        finally:
            json.unlink()


if __name__ == "__main__":
    main(sys.argv[1])
