"""Notifications to systemd: ready, reloading, stopping, and a watchdog that a hanging event loop misses.

Knows: the datagrams of sd_notify(3), the variables that name their socket and the watchdog's time.
Must never know: when the gateway is ready, what is reloaded.
"""

import asyncio
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from app import logs


class Systemd:
    """The service manager that started this process. Nothing is sent if it did not ask for notifications."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Take `NOTIFY_SOCKET`, a path or `@` and an abstract name; and `WATCHDOG_USEC`, if it is for this
        process (`WATCHDOG_PID`).
        """
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        # Half of the time, as sd_watchdog_enabled(3) recommends.
        self.alive_every_s = int(environment.get("WATCHDOG_USEC", "0")) / 2e6 if is_ours else 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_ready = False

    @property
    def is_there(self) -> bool:
        """Whether notifications were asked for."""
        return bool(self._address)

    def start(self) -> None:
        """Show from now on that the event loop runs."""
        if self.is_there and self.alive_every_s:
            self.alive()
            self._timer = asyncio.get_running_loop().call_later(self.alive_every_s, self.start)

    def alive(self) -> None:
        """Show once that the event loop runs."""
        self._send("WATCHDOG=1")

    def ready(self) -> None:
        """The start is complete."""
        self._is_ready = True
        self._send("READY=1")

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Notify from the beginning of a reload to its end. Before the start is complete, nothing is sent."""
        if self._is_ready:
            self._send("RELOADING=1")
        try:
            yield
        finally:
            if self._is_ready:
                self._send("READY=1")

    def stopping(self) -> None:
        """The stop has begun."""
        self._is_ready = False
        self._send("STOPPING=1")

    def close(self) -> None:
        """Stop showing that the event loop runs."""
        if self._timer is not None:
            self._timer.cancel()

    def _send(self, state: str) -> None:
        if not self.is_there:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(state.encode(), self._address)
        except OSError as error:
            # The gateway serves without it; systemd ends what it does not hear from.
            logs.get().warning("systemd was not notified", state=state, reason=error.strerror)
