"""A gateway that is killed again and again beside clients that go on until they are answered.

Knows: kill -9, when it comes, threads and processes, requests of which an answer may be lost.
Must never know: what clients do, and what they were promised: that is each test's.
"""

import contextlib
import http.client
import json
import os
import random
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tests.preloaded import Preloaded
from tests.server import Server

# So that a rewrite is under way at nearly any time.
REWRITING: Final = ("--bound", "rewrite_bytes_min=65536", "--set", "rewrite_growth_percent=1")
# What is killed: with each end of its log, and while that is rewritten.
MODES: Final = (("--fsync", "always"), ("--fsync", "everysec"), ("--fsync", "everysec", *REWRITING))
JSON: Final = {"content-type": "application/json"}
_AGAIN_S: Final = 0.02
_END_S_MAX: Final = 60.0

Answer = tuple[int, Mapping[str, str], bytes]


class Client(ABC):
    """Takes turns in a thread of its own, while it is `working`."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.over = threading.Event()

    @abstractmethod
    def turn(self) -> bool:
        """One request; False where it was not answered, and comes again in a moment."""

    def work(self) -> None:
        """Until it is over."""
        while not self.over.is_set():
            if not self.turn():
                time.sleep(_AGAIN_S)


@contextlib.contextmanager
def working(*clients: Client) -> Iterator[None]:
    """Let them work meanwhile. They have ended behind it."""
    threads = [threading.Thread(target=client.work) for client in clients]
    for client, thread in zip(clients, threads, strict=True):
        client.over.clear()
        thread.start()
    try:
        yield
    finally:
        for client in clients:
            client.over.set()
        for thread in threads:
            thread.join(_END_S_MAX)
            assert not thread.is_alive(), "a client never ends"


class Crew:
    """Processes that are killed, each begun with words of its own. Where they are `mortal`, they also die by
    themselves.
    """

    def __init__(
        self, begin: Callable[..., subprocess.Popen[bytes] | Preloaded], *, mortal: bool = False
    ) -> None:
        self._begin, self._mortal = begin, mortal
        self._running: list[tuple[Sequence[str], subprocess.Popen[bytes] | Preloaded]] = []

    def start(self, *words: str) -> None:
        """One more."""
        self._running.append((words, self._begin(*words)))

    def revive(self) -> None:
        """Start those again that have died."""
        for number, (words, process) in enumerate(self._running):
            if process.poll() is not None:
                self._running[number] = words, self._begin(*words)

    def kill(self, number: int = 0) -> Sequence[str]:
        """The one that has run longest, or another, and what it has started where it leads a group; its
        words.
        """
        words, process = self._running.pop(number)
        if process.poll() is None:
            leads = os.getpgid(process.pid) == process.pid
            (os.killpg if leads else os.kill)(process.pid, signal.SIGKILL)
            process.wait(_END_S_MAX)
        else:
            assert self._mortal, "it ends by nothing else"
        return words

    @contextlib.contextmanager
    def running(self, each: Iterable[Sequence[str]]) -> Iterator[None]:
        """As many as there are words. None of them is left behind it."""
        try:
            for words in each:
                self.start(*words)
            yield
        finally:
            while self._running:
                self.kill()


def kill(server: Server, times: int, life_s: tuple[float, float]) -> None:
    """Kill it at random moments, and start it again."""
    for _ in range(times):
        time.sleep(random.uniform(*life_s))
        server.restart()


def ask(
    port: int, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> Answer | None:
    """The answer to a request over a connection of its own, None where it can give none yet."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        with contextlib.closing(connection):
            given = None if body is None else json.dumps(body)
            connection.request(method, path, given, {**JSON, **(headers or {})})
            answer = connection.getresponse()
            content = answer.read()
        if answer.status != 503:
            assert answer.status < 300, content
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, content
    return None


def call(port: int, method: str, path: str, body: object = None, **headers: str) -> Any:
    """What it says, as JSON; None without an answer."""
    answer = ask(port, method, path, body, headers)
    return None if answer is None else json.loads(answer[2])
