"""Progress: how often it is shown, and that it leaves nothing behind on a terminal."""

import io

from app.cli.migrate import Progress


class ProgressTarget(io.StringIO):
    """Something to write to, which may be a terminal."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


class ProgressClock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_terminal_has_one_line_that_is_written_over() -> None:
    """At once, then five times a second; what stays comes on a line of its own; at the end it is gone."""
    target, clock = ProgressTarget(terminal=True), ProgressClock()
    progress = Progress(target, clock)
    for clock.now_s, line in ((100.0, "1"), (100.1, "2"), (100.2, "3\n"), (100.3, "4")):
        progress.show(line)
    assert target.getvalue() == "\r\x1b[K1\r\x1b[K3\\u000a"
    progress.say("kept")
    progress.clear()
    assert target.getvalue() == "\r\x1b[K1\r\x1b[K3\\u000a\r\x1b[Kweir: kept\n"


def test_a_log_has_a_line_now_and_then() -> None:
    """After ten seconds, and every ten; a short command says nothing of how far it is."""
    target, clock = ProgressTarget(terminal=False), ProgressClock()
    progress = Progress(target, clock)
    for clock.now_s in (100.0, 109.9, 110.0, 119.9, 120.0):
        progress.show(f"at {clock.now_s:.1f}")
    progress.say("kept")
    progress.clear()
    assert target.getvalue() == "weir: at 110.0\nweir: at 120.0\nweir: kept\n"
