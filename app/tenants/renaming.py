"""Commands of a tenant as the engine runs them, with the prefix in every name; replies and refusals without.

Knows: what is done to each kind of field that holds names (`engine.name_marks`), how refusals quote names.
Must never know: which commands and replies there are, but for those with a rule of their own; who sends them.

A command that holds no names is about the streams of all callers, and is refused.
"""

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, Final

from msgspec.structs import asdict, replace

from app.tenants.tenant_names import TenantNames
from app.tenants.walking import Rename, Renames
from engine import EngineError, entries, errors
from engine.commands.base import NO_STREAM, Command
from engine.commands.types import DbSize, Exists
from engine.name_marks import Mark
from engine.replies import Listing, Reply, StreamInfo, StreamPage

_LETTERS: Final = "dead_letter_stream"
# The field of dead letters that names the stream in which an entry died.
SOURCE: Final = "weir-source"


class ShownInfo(StreamInfo, frozen=True):
    """A stream as a tenant sees it, where that differs. `real` is what the engine has: a precondition means
    that.
    """

    real: StreamInfo


def add_prefix(command: Command, names: TenantNames) -> Command:
    """The command for the engine. Raises `forbidden` for one on all streams, `invalid_name`."""
    rename = _ADDING.of(type(command))
    if rename is None:
        raise EngineError(
            "forbidden",
            "NOPERM this command is about the streams of all callers",
            "this is about the streams of all callers, and the token has a prefix",
        )
    renamed: Command = rename(command, names)
    for name in renamed.depends_on() or ():
        if not name.startswith(names.prefix) and name != NO_STREAM:
            # A field without its mark, which is a bug: nothing of others is touched by it.
            raise errors.internal()
    return renamed


def strip_prefix(reply: Reply, names: TenantNames) -> Reply:
    """The reply for the tenant."""
    return [_strip(one, names) for one in reply] if isinstance(reply, list | tuple) else _strip(reply, names)


def _strip(part: Any, names: TenantNames) -> Any:  # noqa: ANN401 - a reply, or what lists hold
    rename = _STRIPPING.of(type(part))
    return part if rename is None else rename(part, names)


def strip_refusal(error: EngineError, added: Mapping[str, str]) -> EngineError:
    """The refusal for the tenant; `added` has the tenant's names by those of the engine."""
    redis, detail = error.redis, error.detail
    for full, name in added.items():
        # As `engine.errors` quotes them.
        for quoted, shown in ((repr(full), repr(name)), (f"'{full}'", f"'{name}'")):
            redis, detail = redis.replace(quoted, shown), detail.replace(quoted, shown)
    members = {
        key: added.get(value, value) if isinstance(value, str) else value
        for key, value in error.members.items()
    }
    return EngineError(error.code, redis, detail, **members)


# ---- of both directions


def _in_entries(source_for: Callable[[TenantNames], Callable[[bytes], bytes]]) -> Mapping[Mark, Rename]:
    """Entries whose field of dead letters has another source."""

    def rename_texts(text: bytes, names: TenantNames) -> bytes:
        if not names_source(text):
            return text
        return b",".join([rename_in_entry(one, source_for(names)) for one in entries.texts(text)])

    def rename_body(body: bytes, names: TenantNames) -> bytes:
        return rename_in_body(body, source_for(names)) if names_source(body) else body

    return {Mark.TEXT: rename_texts, Mark.BODY: rename_body}


# ---- into the engine


def _add_to_source(names: TenantNames) -> Callable[[bytes], bytes]:
    """The prefix, for any value: it is taken away from all that the tenant reads, so it reads what it wrote,
    and learns nothing about the prefix.
    """
    return lambda source: names.prefix_bytes + source


def _add_to_policy(policy: Mapping[str, Any], names: TenantNames) -> Mapping[str, Any]:
    letters = policy.get(_LETTERS)
    return policy if letters is None else {**policy, _LETTERS: names.add(letters)}


def _add_to_key(key: Any, names: TenantNames) -> Any:  # noqa: ANN401 - a key, or the chunk of a producer
    """The first field is the text of the key."""
    if key is None:
        return None
    name = key.__struct_fields__[0]
    return replace(key, **{name: names.add_to_key(getattr(key, name))})


def _meant(expected: StreamInfo, _: TenantNames) -> StreamInfo:
    """A stream as the engine has it, of what the tenant was shown."""
    return expected.real if isinstance(expected, ShownInfo) else expected


def _count_nothing(_: Command, __: TenantNames) -> Command:
    """WAITAOF runs it to wait for the disk, and leaves the number out. DBSIZE itself is refused."""
    return Exists(streams=())


_ADDING: Final = Renames(
    {
        Mark.NAME: lambda name, names: names.add(name),
        Mark.PLACE: lambda place, names: names.prefix + place,
        Mark.POLICY: _add_to_policy,
        Mark.SHARED_KEY: _add_to_key,
        **_in_entries(_add_to_source),
    },
    {
        DbSize: lambda _: _count_nothing,
        StreamInfo: lambda _: _meant,
    },
)

# ---- out of it


def _show(rename: Rename) -> Rename:
    def show(info: StreamInfo, names: TenantNames) -> StreamInfo:
        shown: StreamInfo = rename(info, names)
        return info if shown == info else ShownInfo(**asdict(shown), real=info)

    return show


def _leave_out(field: str, name_of: Callable[[Any], str]) -> Callable[[Rename], Rename]:
    """A list without what the tenant cannot use. It goes on at a name of the tenant, which may be such a
    one.
    """

    def rule(rename: Rename) -> Rename:
        def leave_out(page: Any, names: TenantNames) -> Any:  # noqa: ANN401 - a struct with this field
            own = [one for one in getattr(page, field) if names.has(name_of(one))]
            return rename(replace(page, **{field: own}), names)

        return leave_out

    return rule


_STRIPPING: Final = Renames(
    {
        Mark.NAME: lambda name, names: names.strip(name),
        Mark.PLACE: lambda place, names: place.removeprefix(names.prefix),
        **_in_entries(lambda names: lambda source: source.removeprefix(names.prefix_bytes)),
    },
    {
        Listing: _leave_out("names", str),
        StreamInfo: _show,
        StreamPage: _leave_out("streams", itemgetter(0)),
    },
)


def names_source(text: bytes) -> bool:
    """Whether stored entries may have the field: without it there is nothing to rename."""
    return SOURCE.encode() in text


def rename_in_entry(text: bytes, rename: Callable[[bytes], bytes]) -> bytes:
    """A stored entry with another value of the field; the same where that changes nothing."""
    pairs = entries.pairs_of(text) if names_source(text) else []
    renamed = [(name, rename(value) if name == SOURCE else value) for name, value in pairs]
    if renamed == pairs:
        return text
    body = entries.with_meta(entries.body(renamed), entries.meta_of(text))
    return entries.encode(entries.id_of(text), body)


def rename_in_body(body: bytes, rename: Callable[[bytes], bytes]) -> bytes:
    """As `text`, for an entry that has no ID yet."""
    text = entries.encode(0, body)
    renamed = rename_in_entry(text, rename)
    return body if renamed is text else renamed[len(text) - len(body) :]
