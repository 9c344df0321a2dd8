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
    "weir.schedule": (
        "DEL <key> <name> [RECURRING]",
        "    Cancel a schedule. What recurs takes that word.",
        "GET <key> <name>",
        "    Show a schedule.",
        "LIST <key> [BYNAME] [AFTER <milliseconds> <name>] [COUNT <count>]",
        "    Show what is scheduled, the next one first, or by name.",
        "PAUSE <key> <name> [UNTIL <milliseconds>] [RECURRING]",
        "    Let a schedule wait, until a time or until RESUME.",
        "RESUME <key> <name> [RECURRING]",
        "    Go on with a schedule.",
        "SET <key> <name> [NX] <AT ms|IN ms|EVERY ms|CRON expression [TZ zone]> [option]",
        "    FIELDS <field> <value> [<field> <value> ...]",
        "    Add an entry later, once or again and again. Options are:",
        "    * UNTIL <milliseconds>",
        "      No run is later.",
        "    * COUNT <count>",
        "      This many runs.",
        "    * MISSED <ONCE|SKIP>",
        "      Whether one run makes up for those that were missed.",
        "    * EXPIRES <milliseconds>",
        "      A run that is later than this is dropped.",
    ),
    "weir.group": (
        "SET <key> <group> [option]",
        "    Set what is named of a group's policy. Options, which 0 or an empty word takes away, are:",
        "    * ACKTIMEOUT <milliseconds>, CONSUMERTIMEOUT <milliseconds>, MAXAGE <milliseconds>",
        "    * DEADLETTER <key> [MAXDELIVERIES <count>]",
        "    * ORDEREDBY <field>, INFLIGHTPERKEY <count>",
    ),
    "config": (
        "GET <pattern>",
        "    Return parameters matching the glob-like <pattern> and their values.",
        "SET <directive> <value>",
        "    Set the configuration <directive> to <value>.",
    ),
    "object": (
        "ENCODING <key>",
        "    Return the kind of internal representation used in order to store the value",
        "    associated with a <key>.",
        "FREQ <key>",
        "    Return the access frequency index of the <key>. The returned integer is",
        "    proportional to the logarithm of the recent access frequency of the key.",
        "IDLETIME <key>",
        "    Return the idle time of the <key>, that is the approximated number of",
        "    seconds elapsed since the last access to the key.",
        "REFCOUNT <key>",
        "    Return the number of references of the value associated with the specified",
        "    <key>.",
    ),
    "memory": (
        "USAGE <key> [SAMPLES <count>]",
        "    Return memory in bytes used by <key> and its value. Nested values are",
        "    sampled up to <count> times (default: 5, 0 means sample all).",
    ),
    "slowlog": (
        "GET [<count>]",
        "    Return top <count> entries from the slowlog (default: 10, -1 mean all).",
        "    Entries are made of:",
        "    id, timestamp, time in microseconds, arguments array, client IP and port,",
        "    client name",
        "LEN",
        "    Return the length of the slowlog.",
        "RESET",
        "    Reset the slowlog.",
    ),
    "latency": (
        "DOCTOR",
        "    Return a human readable latency analysis report.",
        "HISTOGRAM [COMMAND ...]",
        (
            "    Return a cumulative distribution of latencies in the format of a histogram for the "
            "specified command names."
        ),
        "    If no commands are specified then all histograms are replied.",
        "HISTORY <event>",
        "    Return time-latency samples for the <event> class.",
        "LATEST",
        "    Return the latest latency samples for all events.",
        "RESET [<event> ...]",
        "    Reset latency data of one or more <event> classes.",
        "    (default: reset all data for all event classes)",
    ),
    "module": ("LIST", "    Return a list of loaded modules."),
    "command": (
        "(no subcommand)",
        "    Return details about all commands.",
        "COUNT",
        "    Return the total number of commands in this server.",
        "LIST",
        "    Return the names of all commands.",
        "INFO [<command-name> ...]",
        "    Return details about multiple commands.",
        "DOCS [<command-name> ...]",
        "    Return documentation details about multiple commands.",
        "GETKEYS <full-command>",
        "    Return the keys from a full command.",
    ),
    "client": (
        "GETNAME",
        "    Return the name of the current connection.",
        "ID",
        "    Return the ID of the current connection.",
        "INFO",
        "    Return information about the current client connection.",
        "KILL <ip:port> | <option> <value> [<option> <value> ...]",
        "    Kill connections.",
        "LIST [options ...]",
        "    Return information about client connections.",
        "NO-EVICT (ON|OFF)",
        "    Nothing is evicted here.",
        "NO-TOUCH (ON|OFF)",
        "    Commands do not change what OBJECT IDLETIME shows of others.",
        "SETINFO <option> <value>",
        "    Set the client's LIB-NAME or LIB-VER.",
        "SETNAME <name>",
        "    Assign the name <name> to the current connection.",
        "UNBLOCK <clientid> [TIMEOUT|ERROR]",
        "    Unblock the specified blocked client.",
    ),
    "acl": ("WHOAMI", "    Return the current connection username."),
}


def lines(container: str) -> list[str]:
    """The reply to `<container> HELP`; `container` in lower case."""
    head = f"{container.upper()} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    return [head, *_LINES[container], "HELP", "    Print this help."]
