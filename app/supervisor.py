"""The supervisor of a gateway of several processes: it starts them, and again when they die.

Knows: processes and their ends, signals, who needs a connection to the engine's process.
Must never know: HTTP, the log, what the processes say to each other.

    supervisor ─┬─ engine's process: the log, Redis clients, the admin port
                ├─ front: HTTP ──┐ one connection each, which the supervisor makes
                └─ front: HTTP ──┘ and hands to both ends

Its children are forks of it, so it never has a thread or an event loop. It has no address that others could
connect to: connections are pairs of sockets, handed over the connection that each child has to it.
"""

import ctypes
import gc
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from app import logs, server

# For the children, which are forks: what is imported before, they share.
from app.fronts import front_life, ports  # noqa: F401
from app.fronts.control import ALIVE, LINK, READY, CommonPhase, Control
from app.lifespan import FAILED, FINE, USAGE, ServerStoppedError, check_exposure
from app.server import ListenAddress, Say
from app.settings import Settings
from app.transport import tls
from app.transport.systemd import Systemd
from engine import Clock

_WORD_BYTES_MAX: Final = 16
# Signals that are looked at together.
_WAKES_MAX: Final = 4_096
# A process that dies is started again after this time, which doubles while it goes on dying.
_RESTART_S_MIN: Final = 0.1
_RESTART_S_MAX: Final = 5.0
# One that has lived this long was well.
_WELL_S: Final = 60.0
# Fronts that do not stop are killed this long after the time that answers have.
# So are those that hang and do not end.
_STUCK_S: Final = 2.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
# Of prctl(2): the signal that the kernel sends to a process when its parent dies.
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)
# A child gets these once it can handle them.
_SENT_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Work = Callable[[Settings, Clock, Control], None]


class Role(NamedTuple):
    """What a child is for. The first one has the engine."""

    name: str
    work: Work


class Child:
    """A child, over all of its lives. `pid` is None between two of them."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self.pid: int | None = None
        self.control: socket.socket | None = None
        self.started_s = 0.0
        # By then its event loop has to show again that it runs.
        self.alive_by_s = float("inf")
        self.hangs = False
        self.start_at_s = 0.0
        self.delay_s = _RESTART_S_MIN
        self.is_ready = False
        # Since its first `ready` of this life.
        self.has_connections = False
        # A front that has no connection to the engine's process.
        self.needs_link = False

    def send(self, word: bytes, *sockets: socket.socket) -> bool:
        """Send a word; whether it was sent."""
        if self.control is None:
            return False
        try:
            socket.send_fds(self.control, [word], [end.fileno() for end in sockets])
        except OSError:
            return False
        return True

    def kill(self, number: int) -> None:
        """Send a signal."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def run(settings: Settings, clock: Clock, say: Say, systemd: Systemd) -> None:
    """Serve until SIGTERM or SIGINT. Raises ServerStoppedError for every end but that."""
    if not settings.is_embedded:
        raise ServerStoppedError(USAGE, "fronts share an embedded engine: leave them out with a backend")
    check_exposure(settings)
    # What is wrong with the files ends it here, once.
    tls.server_context(settings)
    server.say_data(settings, say)
    with server.reserve(settings) as reserved:
        settings = settings.model_copy(update={"port": reserved.getsockname()[1]})
        Supervisor(settings, clock, say, systemd).run()


class Supervisor:
    """The children of one gateway, from the first start to the last end."""

    def __init__(self, settings: Settings, clock: Clock, say: Say, systemd: Systemd) -> None:
        self._settings = settings
        self._clock = clock
        self._say = say
        self._systemd = systemd
        self._engine = Child(Role("engine", server.run_engine))
        self._fronts = [Child(Role(f"front {n + 1}", server.run_front)) for n in range(settings.fronts)]
        self._children = [self._engine, *self._fronts]
        self._pid = os.getpid()
        # What systemd wants to hear of in this time; without it nothing is watched.
        self._watchdog_s = 2 * systemd.alive_every_s or float("inf")
        self._signals: list[int] = []
        self._was_ready = False
        self._common = CommonPhase()
        self._is_stopping = False
        self._is_engine_stopping = False
        self._stop_by_s = float("inf")
        self._exit_code = FINE

    def run(self) -> None:
        """Until all children have ended. Raises ServerStoppedError."""
        wake, woken = socket.socketpair()
        for end in (wake, woken):
            end.setblocking(False)  # noqa: FBT003 - its only parameter
        self._handle_signals(wake.fileno())
        # Children share this memory as long as no process writes to it.
        gc.collect()
        gc.freeze()
        while not (self._is_stopping and all(child.pid is None for child in self._children)):
            self._start_those_due()
            controls = {
                child.control.fileno(): child for child in self._children if child.control is not None
            }
            ready, _, _ = select.select([woken.fileno(), *controls], [], [], self._wait_s())
            for descriptor in ready:
                if descriptor in controls:
                    self._receive(controls[descriptor])
                else:
                    woken.recv(_WAKES_MAX)
            self._handle()
        if self._exit_code != FINE:
            remedy = "docs/scale.md says what each process does"
            raise ServerStoppedError(self._exit_code, "a process of the gateway has ended, see above", remedy)

    # --- signals --------------------------------------------------------------------------------------------

    def _handle_signals(self, wake: int) -> None:
        numbers = [*_SIGNALS]
        if server.reloads(self._settings, self._systemd):
            numbers.append(signal.SIGHUP)
        for number in numbers:
            signal.signal(number, lambda number, _: self._signals.append(number))
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def _handle(self) -> None:
        signals, self._signals = self._signals, []
        if signal.SIGHUP in signals:
            # Behind this, systemd only knows that it was asked for.
            with self._systemd.reloading():
                for child in self._children:
                    child.kill(signal.SIGHUP)
        if signal.SIGTERM in signals or signal.SIGINT in signals:
            self._stop(FINE)
        self._reap()
        if self._is_stopping:
            self._go_on_stopping()
        else:
            self._end_those_that_hang()

    def _stop(self, exit_code: int) -> None:
        """Stop the fronts, and then the engine; at once with a second signal."""
        if self._is_stopping:
            for child in self._children:
                child.kill(signal.SIGTERM)
            return
        server.note_stop(self._settings, self._systemd)
        self._is_stopping, self._exit_code = True, exit_code
        self._stop_by_s = self._clock.monotonic() + self._settings.drain_s_max + _STUCK_S
        for front in self._fronts:
            front.kill(signal.SIGTERM)

    def _go_on_stopping(self) -> None:
        late = self._clock.monotonic() >= self._stop_by_s
        running = [front for front in self._fronts if front.pid is not None]
        if not running and not self._is_engine_stopping:
            self._is_engine_stopping, self._stop_by_s = True, float("inf")
            self._engine.kill(signal.SIGTERM)
        elif late:
            for front in running:
                front.kill(signal.SIGKILL)

    # --- children -------------------------------------------------------------------------------------------

    def _wait_s(self) -> float | None:
        now_s = self._clock.monotonic()
        due = [child.start_at_s for child in self._children if child.pid is None and not self._is_stopping]
        if not self._is_stopping:
            due += [front.alive_by_s for front in self._fronts if front.pid is not None]
        soonest = min([*due, self._stop_by_s])
        return None if soonest == float("inf") else max(0.0, soonest - now_s)

    def _start_those_due(self) -> None:
        now_s = self._clock.monotonic()
        for child in self._children:
            if child.pid is None and child.start_at_s <= now_s and not self._is_stopping:
                self._start(child)

    def _start(self, child: Child) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)  # noqa: FBT003 - its only parameter
        sys.stdout.flush()
        sys.stderr.flush()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SENT_SIGNALS)
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._become(child.role, theirs)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        child.pid, child.control = pid, ours
        child.started_s = self._clock.monotonic()
        child.alive_by_s, child.hangs = child.started_s + self._watchdog_s, False
        if child is self._engine:
            self._link_those_without()

    def _become(self, role: Role, control: socket.socket) -> None:
        """Be a child, until it ends. Never returns."""
        exit_code = FAILED
        try:
            signal.set_wakeup_fd(-1)
            for number in (*_SIGNALS, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            # As tools show it, up to 15 characters.
            with suppress(OSError):
                Path("/proc/self/comm").write_text(f"weir {role.name}", encoding="ascii")
            # A Ctrl-C is for the supervisor, which stops its children in order.
            os.setpgid(0, 0)
            _die_with(self._pid)
            for child in self._children:
                if child.control is not None:
                    child.control.close()
            role.work(
                self._settings, self._clock, Control(control, self._common, self._systemd.alive_every_s)
            )
            exit_code = FINE
        except ServerStoppedError as stopped:
            stopped.log(process=role.name)
            exit_code = stopped.exit_code
        except BaseException:  # noqa: BLE001 - a child never goes on as its parent
            traceback.print_exc()
        finally:
            with suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(exit_code)

    def _reap(self) -> None:
        for child in self._children:
            if child.pid is None:
                continue
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                self._end(child, os.waitstatus_to_exitcode(status))

    def _end(self, child: Child, exit_code: int) -> None:
        """A child has ended; a negative code is the signal that has killed it."""
        assert child.control is not None, "it was started"
        child.control.close()
        was_ready = child.is_ready
        child.pid, child.control, child.needs_link = None, None, False
        child.is_ready = child.has_connections = False
        if child is self._engine:
            self._common.end_ready()
        if self._is_stopping:
            if child is self._engine and exit_code and not self._exit_code:
                self._exit_code = exit_code if exit_code > 0 else FAILED
            return
        if exit_code > 0 and (child is self._engine or not self._was_ready):
            # It was refused something, and would be again: as a gateway of one process, it ends with that.
            self._stop(exit_code)
            return
        now_s = self._clock.monotonic()
        lived_s = now_s - child.started_s
        child.delay_s = _RESTART_S_MIN if lived_s >= _WELL_S else min(2 * child.delay_s, _RESTART_S_MAX)
        child.start_at_s = now_s + child.delay_s
        logs.get().critical(
            "a process has died",
            process=child.role.name,
            exit_code=exit_code,
            was_ready=was_ready,
            remedy=f"it is started again in {child.delay_s:.1f} s, nothing acknowledged is lost",
        )
        # It may have been the only one that was not ready.
        self._check_ready()

    def _end_those_that_hang(self) -> None:
        """End the fronts whose event loops hang. If the engine's does, systemd ends all processes."""
        now_s = self._clock.monotonic()
        for front in self._fronts:
            if front.pid is None or now_s < front.alive_by_s:
                continue
            remedy = "it is started again; report this line, and the stacks of its threads if they follow"
            logs.get().critical("a process hangs", process=front.role.name, remedy=remedy)
            # SIGABRT shows the stacks, as systemd's watchdog does, unless the process is stopped.
            front.kill(signal.SIGKILL if front.hangs else signal.SIGABRT)
            front.alive_by_s, front.hangs = now_s + _STUCK_S, True

    # --- what children say ----------------------------------------------------------------------------------

    def _receive(self, child: Child) -> None:
        assert child.control is not None, "it was selected"
        try:
            word = child.control.recv(_WORD_BYTES_MAX)
        except OSError:
            return
        if word == READY:
            child.is_ready = child.has_connections = True
            self._check_ready()
        elif word == LINK:
            child.needs_link = True
            if child.is_ready:
                child.is_ready = False
                self._common.end_ready()
            self._link_those_without()
        elif word == ALIVE:
            child.alive_by_s = self._clock.monotonic() + self._watchdog_s
            if child is self._engine:
                self._systemd.alive()

    def _check_ready(self) -> None:
        """All are ready once all have been, and then again without those that are being started again."""
        wanted = [front for front in self._fronts if front.has_connections or not self._was_ready]
        if not (self._engine.is_ready and all(front.is_ready for front in wanted)):
            return
        self._common.be_ready()
        if self._was_ready:
            return
        self._was_ready = True
        settings = self._settings
        scheme = "https" if settings.tls_certificate else "http"
        places = [ListenAddress(settings.host, settings.port, scheme)]
        if settings.admin is not None:
            places.append(ListenAddress(*settings.admin, scheme))
        server.say_urls(places, settings, self._say)
        self._systemd.ready()

    def _link_those_without(self) -> None:
        """Connect the fronts that have asked for it to the engine's process."""
        for front in self._fronts:
            if not front.needs_link or self._engine.control is None:
                continue
            near, other = socket.socketpair()
            with near, other:
                if self._engine.send(LINK, near):
                    front.needs_link = not front.send(LINK, other)


def _die_with(parent: int) -> None:
    """Have the kernel end this process with its parent, also when it hangs and would not notice."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(FAILED)
