"""docs/shippers.md: what Vector and Fluent Bit send, as configured there, is stored record by record.

Knows: requests as both make them, after their sources and manuals, in tests/vectors/shippers.json.
"""

import configparser
import gzip
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import pytest
import zstandard
from ruamel.yaml import YAML

from tests.app.conftest import app, backend, closed_app, engine, http, settings

__all__ = ["app", "backend", "closed_app", "engine", "http", "settings"]

ROOT: Final = Path(__file__).parents[2]
SENT: Final[list[Any]] = json.loads((ROOT / "tests" / "vectors" / "shippers.json").read_text())
CODERS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "zstd": zstandard.ZstdCompressor().compress,
    "gzip": gzip.compress,
    "identity": bytes,
}


def _block(language: str) -> str:
    """The document's one configuration in this language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / "shippers.md").read_text(), re.DOTALL)
    return str(found)


def _configured() -> dict[str, tuple[str, str]]:
    """By shipper: the path that it is configured to send to, and its compression."""
    vector = YAML(typ="safe").load(_block("yaml"))["sinks"]["weir"]
    uri = urlsplit(vector["uri"])
    parser = configparser.ConfigParser(delimiters=(" ",), interpolation=None)
    parser.read_string(re.sub(r"(?m)^ +", "", _block("ini")))
    bit = parser["OUTPUT"]
    return {
        "vector": (f"{uri.path}?{uri.query}", vector["compression"]),
        "fluent bit": (bit["uri"].strip(), bit["compress"].strip()),
    }


@pytest.mark.parametrize(
    "sent", SENT, ids=[f"{one['shipper']}-{one['headers']['content-type']}" for one in SENT]
)
async def test_what_is_sent_is_stored(http: httpx.AsyncClient, sent: Any) -> None:
    path, compression = _configured()[sent["shipper"]]
    coding = sent["headers"].get("content-encoding", "identity")
    assert coding in (compression, "identity")
    answer = await http.post(path, content=CODERS[coding](sent["body"].encode()), headers=sent["headers"])
    assert answer.status_code == 201, answer.text
    entries = (await http.get("/v1/streams/logs/entries")).json()["entries"]
    assert [one["fields"] for one in entries] == sent["fields"]
