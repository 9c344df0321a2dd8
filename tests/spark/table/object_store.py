"""An S3-compatible server on loopback: moto's, as a process of its own.

Knows: how to start it, and one bucket. Must never know: what is stored there.

It is real in what the table leans on: HTTP, listings, multipart uploads, and 412 for a second
`PUT` with `If-None-Match: *`, which a test proves first. It fakes the rest: objects are in the memory of one
process, so nothing is durable and all reads are consistent; signatures are not checked, and any key may do
everything, until `restrict`; there is no latency, throttling or lost answer.
"""

import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Self

from pyspark_weir.table.root import ArchiveRoot

BUCKET = "archive-bucket"
_PYTHON = Path(sys.executable).parent.parent / "tools" / "bin" / "python"
# One request at a time: `moto_server` looks for the object in one step and puts it in another, so that of two
# at once both may be right.
_PROGRAM = """
import sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

answers, one_at_a_time = DomainDispatcherApplication(create_backend_app), threading.Lock()

def answer(environ, start):
    with one_at_a_time:
        return list(answers(environ, start))

run_simple("127.0.0.1", int(sys.argv[1]), answer, threaded=True)
"""
# The server looks whether a request is signed, not how.
_SIGNED = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/{}/aws4_request, Signature=0"
# Not a form, as urllib would say.
_HEADERS = {"Authorization": _SIGNED.format("s3"), "Content-Type": "application/octet-stream"}
_MAY_READ = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": ["s3:Get*", "s3:List*"], "Resource": "*"}],
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
            [str(_PYTHON), "-c", _PROGRAM, str(port)],
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

    def options(self, key: str = "key", secret: str = "secret") -> dict[str, str]:
        """How the holder of a key reaches it."""
        return {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
        }

    def root(self, folder: str) -> ArchiveRoot:
        """The root of an archive in the bucket."""
        return ArchiveRoot.of(f"s3://{BUCKET}/{folder}", self.options())

    def restrict(self) -> tuple[str, str]:
        """From now on signatures and policies count: nothing is allowed but reading, to the key returned."""
        user = {"UserName": "reader"}
        self._form(Action="CreateUser", **user)
        made = self._form(Action="CreateAccessKey", **user)
        policy = json.dumps(_MAY_READ)
        self._form(Action="PutUserPolicy", PolicyName="read", PolicyDocument=policy, **user)
        begin = urllib.request.Request(f"{self.url}/moto-api/reset-auth", b"0", _HEADERS, method="POST")
        urllib.request.urlopen(begin, timeout=10).close()
        found = [re.search(f"<{name}>(.*?)<", made) for name in ("AccessKeyId", "SecretAccessKey")]
        key, secret = (one[1] for one in found if one is not None)
        return key, secret

    def _form(self, **members: str) -> str:
        body = urllib.parse.urlencode({"Version": "2010-05-08", **members}).encode()
        request = urllib.request.Request(f"{self.url}/", body, {"Authorization": _SIGNED.format("iam")})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return str(answer.read(), "utf-8")
