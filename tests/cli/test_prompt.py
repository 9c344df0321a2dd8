"""`weir commands`: Redis's commands, and replies as redis-cli shows them.

Knows: commands and what is shown. Must never know: how a reply comes.
"""

import subprocess

from tests.cli.command import redis, weir
from tests.cluster.servers import BackendServer


def test_a_command_and_its_reply(url: str, stream: str) -> None:
    assert weir(url, "commands", "XADD", stream, "1-0", "f", "two words").out == '"1-0"\n'
    assert weir(url, "commands", "XLEN", stream, "--json").out == "1\n"
    refused = weir(url, "commands", "XLEN")
    assert (refused.code, refused.out) == (1, "")
    assert "wrong number of arguments" in refused.err


def test_lines_until_quit(url: str, stream: str) -> None:
    """What is wrong is said, and the next line is run; the exit code says that something was."""
    lines = f'XADD "{stream}" 1-0 f \'a "b"\'\n\n# nothing\nNONE\nXLEN "\nXLEN "{stream}"\nquit\nXLEN x\n'
    done = weir(url, "commands", given=lines.encode())
    assert (done.code, done.lines) == (1, ['"1-0"', "(integer) 1"])
    assert [line.split(": ")[1][:3] for line in done.err.splitlines()] == ["ERR", "No "]
    assert weir(url, "commands", given=f'XLEN "{stream}"\n'.encode()).code == 0
    assert redis(url, "XRANGE", stream, "-", "+") == [["1-0", ["f", 'a "b"']]]


def test_replies_look_as_in_redis_cli(url: str, stream: str, origin: BackendServer) -> None:
    lines = [
        *[f"XADD s {number}-0 f v" for number in range(1, 13)],
        *["XRANGE s - +", "XGROUP CREATE s g 0", "XREADGROUP GROUP g c COUNT 2 STREAMS s >"],
        *["XPENDING s g", "XPENDING s g - + 9", "XRANGE none - +", "XREAD STREAMS none 0", "XLEN s"],
    ]
    given = "\n".join(lines)
    shown = weir(url, "commands", given=given.replace(" s", f' "{stream}"').encode()).out
    cli = ["redis-cli", "-p", str(origin.port), "--no-raw"]
    wanted = subprocess.run(cli, input=given, capture_output=True, text=True, check=True).stdout
    idle = [line for line in wanted.splitlines() if "(integer)" in line]
    assert len(idle) > 3
    # Idle times differ.
    plain = [line for line in wanted.replace("OK", '"OK"').splitlines() if line and "(integer)" not in line]
    found = [line.replace(stream, "s") for line in shown.splitlines() if "(integer)" not in line]
    assert found == plain
