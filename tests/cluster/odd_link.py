"""In front of a server: says a sentence of its own in the place of what the server would.

Knows: commands and replies on the wire, which commands name one stream. Must never know: the gateway.
"""

import contextlib
import socket
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

import hiredis

from engine.cluster.wire import pack
from tests.cluster.servers import BackendServer

_BYTES_MAX: Final = 1 << 16
_NOTHING: Final = object()
# What comes over these is no reply to a command.
_LISTENING: Final = (b"SUBSCRIBE", b"UNSUBSCRIBE")


class OddLink:
    """While there is a `sentence`, it is the reply to every command that names `stream`. The server sees none
    of them.
    """

    def __init__(self, server: BackendServer, stream: str) -> None:
        self.sentence = ""
        # How often it was said.
        self.said = 0
        self._server = server
        self._stream = stream.encode()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listener]

    @property
    def url(self) -> str:
        """As the setting `backend` has it."""
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def is_about(self, words: Sequence[bytes]) -> bool:
        """Whether a command names the stream, or a key beside it."""
        return any(word == self._stream or word.endswith(b"/" + self._stream) for word in words)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server.port))
            self._open += [client, server]
            threading.Thread(target=_Connection(self, client, server).serve, daemon=True).start()


class _Connection:
    """One command after the other, each with its reply; with a subscription, as it comes."""

    def __init__(self, link: OddLink, client: socket.socket, server: socket.socket) -> None:
        self._link, self._client, self._server = link, client, server
        self._replies = hiredis.Reader(notEnoughData=_NOTHING)
        self._is_listening = self._is_discarded = False

    def serve(self) -> None:
        commands = hiredis.Reader(notEnoughData=_NOTHING)
        with contextlib.suppress(OSError):
            while data := self._client.recv(_BYTES_MAX):
                commands.feed(data)
                while (words := commands.gets()) is not _NOTHING:
                    self._take(words)
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _take(self, words: Any) -> None:
        name = words[0].upper()
        if name in _LISTENING and not self._is_listening:
            self._is_listening = True
            threading.Thread(target=self._listen, daemon=True).start()
        if self._is_listening:
            self._server.sendall(pack(tuple(words)))
        elif self._link.sentence and self._link.is_about(words):
            self._link.said += 1
            self._is_discarded = True
            self._client.sendall(f"-{self._link.sentence}\r\n".encode())
        elif name == b"EXEC" and self._is_discarded:
            self._ask(("DISCARD",))
            self._client.sendall(b"-EXECABORT Transaction discarded because of previous errors.\r\n")
        else:
            self._is_discarded = self._is_discarded and name != b"MULTI"
            self._client.sendall(self._ask(words))

    def _ask(self, words: Sequence[Any]) -> bytes:
        """The reply, as it came."""
        self._server.sendall(pack(tuple(words)))
        whole = b""
        while True:
            data = self._server.recv(_BYTES_MAX)
            if not data:
                raise ConnectionError
            whole += data
            self._replies.feed(data)
            if self._replies.gets() is not _NOTHING:
                return whole

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(_BYTES_MAX):
                self._client.sendall(data)
