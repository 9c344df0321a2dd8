"""An S3-compatible server on loopback: moto's, as a process of its own.

Knows: how to start it, and one bucket. Must never know: what is stored there.

It is real in what the table leans on: HTTP, listings, multipart uploads, and 412 for a second
`PUT` with `If-None-Match: *`, which a test proves first. It fakes the rest: objects are in the memory of one
process, so nothing is durable and all reads are consistent; signatures are not checked, and any key may do
everything; there is no latency, throttling or lost answer.
"""

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from pyspark_weir.table.root import ArchiveRoot

BUCKET = "archive-bucket"
_PROGRAM = Path(sys.executable).parent.parent / "tools" / "bin" / "moto_server"
_HEADERS = {
    # The server looks whether a request is signed, not how.
    "Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, Signature=0",
    # Not a form, as urllib would say.
    "Content-Type": "application/octet-stream",
}
_START_SECONDS_MAX = 120


class ObjectStore:
    """A server that runs while the block does."""

    def __enter__(self) -> Self:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(
            [str(_PROGRAM), "-H", "127.0.0.1", "-p", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + _START_SECONDS_MAX
        while self._put_bucket() != 200:
            assert self._process.poll() is None, "the server ended"
            assert time.monotonic() < end, "the server does not start"
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _put_bucket(self) -> int:
        try:
            return self.put("", b"")
        except urllib.error.URLError:
            return 0

    def put(self, key: str, content: bytes, **headers: str) -> int:
        """The status of a PUT of an object, or of the bucket if `key` is empty."""
        named = {name.replace("_", "-"): value for name, value in headers.items()} | _HEADERS
        request = urllib.request.Request(
            f"{self.url}/{BUCKET}/{key}".rstrip("/"), content, named, method="PUT"
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def root(self, folder: str) -> ArchiveRoot:
        """The root of an archive in the bucket."""
        return ArchiveRoot.of(
            f"s3://{BUCKET}/{folder}",
            {
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": self.url,
            },
        )
