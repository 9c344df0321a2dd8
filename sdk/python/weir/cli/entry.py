"""Where the command `weir` begins.

Knows: that Ctrl-C may come while modules are still imported. Must never know: any command.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


def main() -> None:
    """Run the command."""
    with imports():
        from weir.cli.main import add_plugins, run

        add_plugins()
    run()


@contextmanager
def imports() -> Iterator[None]:
    """While a command is imported: Ctrl-C ends the process as it does any other program, without the trace of
    half an import.
    """
    # It may also be ignored, as in the background of a script: that stays.
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    yield
    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
