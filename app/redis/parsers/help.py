"""The replies of HELP.

Knows: the texts, line by line, as Redis gives them.
Must never know: how the commands work.
"""

from collections.abc import Mapping, Sequence
from typing import Final

_LINES: Final[Mapping[str, Sequence[str]]] = {
    "xgroup": (
        "CREATE <key> <groupname> <id|$> [option]",
        "    Create a new consumer group. Options are:",
        "    * MKSTREAM",
        "      Create the empty stream if it does not exist.",
        "    * ENTRIESREAD entries_read",
        "      Set the group's entries_read counter (internal use).",
        "CREATECONSUMER <key> <groupname> <consumer>",
        "    Create a new consumer in the specified group.",
        "DELCONSUMER <key> <groupname> <consumer>",
        "    Remove the specified consumer.",
        "DESTROY <key> <groupname>",
        "    Remove the specified group.",
        "SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]",
        "    Set the current group ID and entries_read counter.",
    ),
    "xinfo": (
        "CONSUMERS <key> <groupname>",
        "    Show consumers of <groupname>.",
        "GROUPS <key>",
        "    Show the stream consumer groups.",
        # The missing bracket is missing in Redis too.
        "STREAM <key> [FULL [COUNT <count>]",
        "    Show information about the stream.",
    ),
    "config": (
        "GET <pattern>",
        "    Return parameters matching the glob-like <pattern> and their values.",
        "SET <directive> <value>",
        "    Set the configuration <directive> to <value>.",
    ),
    "command": ("COUNT", "    Return the total number of commands in this server."),
}


def lines(container: str) -> list[str]:
    """The reply to `<container> HELP`; `container` in lower case."""
    head = f"{container.upper()} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    return [head, *_LINES[container], "HELP", "    Print this help."]
