"""The words of a command, read one after the other, with the refusals that all commands share.

Knows: Redis's lexical rules: how integers, IDs, bounds and option words are spelled, and its exact error
texts.
Must never know: a single command.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from app import names
from engine import EngineError, errors, ids

INTEGER_MAX: Final = (1 << 63) - 1
INTEGER_MIN: Final = -(1 << 63)

# The part of a refused word that Redis shows.
_ECHO_BYTES_MAX: Final = 128
# Redis's string2ll: no plus, no blanks, no leading zeros, no minus zero. At most 19 digits reach `int`.
_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")
# BLOCK is added to the clock, and the sum must fit in 63 bits. Parsing has no clock: this is the year 2527.
_CLOCK_MS_MAX: Final = 1 << 44


class Words:
    """A cursor over the words of one command, from the first argument on."""

    __slots__ = ("_all", "_place")

    def __init__(self, words: Sequence[bytes], place: int = 1) -> None:
        self._all = words
        self._place = place

    @property
    def left(self) -> int:
        """The number of words that were not taken yet."""
        return len(self._all) - self._place

    def peek(self) -> bytes:
        """The next word, without taking it."""
        return self._all[self._place]

    def take(self) -> bytes:
        """Take the next word."""
        word = self._all[self._place]
        self._place += 1
        return word

    def take_many(self, count: int) -> Sequence[bytes]:
        """Take the next `count` words."""
        self._place += count
        return self._all[self._place - count : self._place]

    def rest(self) -> Sequence[bytes]:
        """Take all remaining words."""
        return self.take_many(self.left)

    def option(self) -> bytes:
        """Take the next word in upper case: options and subcommands are case-insensitive."""
        return self.take().upper()

    def took(self, option: bytes, *, values: int = 0) -> bool:
        """Take the next word if it is `option` and at least `values` words follow; return whether it was.

        Redis does not treat an option without its value as an option, but as any other word in that place.
        """
        if self.left > values and self.peek().upper() == option:
            self._place += 1
            return True
        return False


# Options with a value, by their words: the names of what they set, and how the value is read.
Options = Mapping[bytes, tuple[str, Callable[[bytes], object]]]


def take_option(words: Words, options: Options, given: dict[str, Any]) -> None:
    """Take one of the options and its value into what is `given`, each once."""
    option = options.get(words.option()) if words.left > 1 else None
    if option is None or option[0] in given:
        raise errors.syntax_error()
    given[option[0]] = option[1](words.take())


def echo(word: bytes) -> str:
    """`word` as Redis prints it into an error: ends at NUL and at 128 bytes, line ends become blanks."""
    shown = word[:_ECHO_BYTES_MAX].partition(b"\0")[0]
    return shown.decode(errors="replace").replace("\r", " ").replace("\n", " ")


def integer(word: bytes, refusal: str = "") -> int:
    """The signed 64-bit integer that `word` spells; `refusal` is a text instead of the general one."""
    if _INTEGER.fullmatch(word):
        number = int(word)
        if INTEGER_MIN <= number <= INTEGER_MAX:
            return number
    raise errors.invalid(refusal) if refusal else errors.not_an_integer()


def integer_from(word: bytes, least: int, most: int, refusal: str) -> int:
    """The integer that `word` spells, in [least, most]. Raises `refusal`."""
    number = integer(word, refusal)
    if not least <= number <= most:
        raise errors.invalid(refusal)
    return number


def timeout_ms(word: bytes) -> int:
    """The milliseconds of BLOCK and WAIT; 0 is for ever."""
    number = integer(word, "ERR timeout is not an integer or out of range")
    if number < 0:
        raise errors.invalid("ERR timeout is negative")
    if number > INTEGER_MAX - _CLOCK_MS_MAX:
        raise errors.invalid("ERR timeout is out of range")
    return number


def entry_id(word: bytes, *, missing_sequence: int = 0) -> int:
    """The ID that `word` spells."""
    text = word.decode("latin-1")
    found = ids.parse(text, missing_sequence=missing_sequence)
    if found is None:
        raise errors.malformed_id(word.decode(errors="replace"))
    return found


def entry_ids(words: Sequence[bytes]) -> list[int]:
    """All the IDs, or the refusal of the first malformed one."""
    found = ids.parse_each(words) if len(words) > 1 else None
    return [entry_id(word) for word in words] if found is None else found


def id_or_edge(word: bytes, *, missing_sequence: int = 0) -> int:
    """The ID that `word` spells; `-` and `+` are the first and the last possible one."""
    if word == b"-":
        return ids.ID_MIN
    if word == b"+":
        return ids.ID_MAX
    return entry_id(word, missing_sequence=missing_sequence)


def range_start(word: bytes) -> int:
    """The inclusive lower bound: `(` excludes the ID that follows, a missing sequence is 0."""
    if not word.startswith(b"("):
        return id_or_edge(word)
    bound = entry_id(word[1:])
    if bound == ids.ID_MAX:
        raise errors.invalid_interval("start")
    return bound + 1


def range_end(word: bytes) -> int:
    """The inclusive upper bound: `(` excludes the ID that follows, a missing sequence is the largest."""
    if not word.startswith(b"("):
        return id_or_edge(word, missing_sequence=ids.SEQUENCE_MAX)
    bound = entry_id(word[1:], missing_sequence=ids.SEQUENCE_MAX)
    if bound == ids.ID_MIN:
        raise errors.invalid_interval("end")
    return bound - 1


def text(word: bytes, what: str) -> str:
    """The text that `word` is, of what is `what`."""
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise errors.invalid(f"ERR {what} is UTF-8") from None


def stream_name(word: bytes) -> str:
    """The key."""
    return names.check(word, "stream name")


def stream_names(words: Sequence[bytes]) -> list[str]:
    """The keys."""
    return [stream_name(word) for word in words]


def group_name(word: bytes) -> str:
    """The group."""
    return names.check(word, "group name")


def consumer_name(word: bytes) -> str:
    """The consumer."""
    return names.check(word, "consumer name")


def wrong_arity(command: str) -> EngineError:
    """`command` in lower case, a subcommand behind a bar: `xgroup|create`."""
    return errors.invalid(f"ERR wrong number of arguments for '{command}' command")


def unknown_command(words: Sequence[bytes], hint: str = "") -> EngineError:
    """The first arguments are shown too, 128 bytes of them in all; then what to do instead."""
    shown = b""
    for word in words[1:]:
        if len(shown) >= _ECHO_BYTES_MAX:
            break
        room = _ECHO_BYTES_MAX - len(shown)
        shown += b"'%b' " % word[:room].partition(b"\0")[0]
    arguments = shown.decode(errors="replace").replace("\r", " ").replace("\n", " ")
    sentence = f"ERR unknown command '{echo(words[0])}', with args beginning with: {arguments}"
    return errors.invalid(f"{sentence}({hint})" if hint else sentence)


def unknown_subcommand(container: str, word: bytes) -> EngineError:
    """`container` in lower case."""
    return errors.invalid(f"ERR unknown subcommand '{echo(word)}'. Try {container.upper()} HELP.")


def subcommand_syntax(container: str, word: bytes) -> EngineError:
    """A known subcommand with options that make no sense; `word` as it was written."""
    shown = echo(word)
    return errors.invalid(
        f"ERR unknown subcommand or wrong number of arguments for '{shown}'. Try {container.upper()} HELP."
    )
