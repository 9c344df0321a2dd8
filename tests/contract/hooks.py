"""What schemathesis cannot know from the description: how IDs are drawn, which refusals are right.

Knows: the formats of IDs, bounds and cursors; the sentences about what does not go together.
Must never know: how any of it is served.
"""

import json
from typing import Any

import schemathesis
from hypothesis import strategies as st

# ---- formats: two unsigned 64-bit numbers, which a pattern alone cannot bound

_unsigned = st.integers(min_value=0, max_value=(1 << 64) - 1).map(str)
# A bound that excludes the last ID there is, or the first, has nothing beyond it.
_inner = st.integers(min_value=1, max_value=(1 << 64) - 2).map(str)

_ids = st.one_of(_unsigned, st.tuples(_unsigned, _unsigned).map("-".join))
_inner_ids = st.one_of(_inner, st.tuples(_inner, _inner).map("-".join))
_bounds = st.one_of(st.sampled_from("-+"), _ids, _inner_ids.map("({}".format))

schemathesis.openapi.format("entry-id", _ids)
schemathesis.openapi.format("entry-bound", _bounds)
schemathesis.openapi.format("entry-cursor", st.one_of(st.just("$"), _ids))
schemathesis.openapi.format("entry-start", st.one_of(st.just("-"), _ids))
schemathesis.openapi.format("entry-etag", _ids.map('"{}"'.format))
schemathesis.openapi.format("entity-tags", st.one_of(st.just("*"), _ids.map('"{}"'.format)))
schemathesis.openapi.format("new-entry-id", st.one_of(st.just("*"), _ids, _unsigned.map("{}-*".format)))


@schemathesis.serializer("application/x-ndjson")
def as_lines(_: object, value: Any) -> bytes:
    """Bytes as they are; what is none, as its JSON."""
    data = getattr(value, "data", None)
    return data if isinstance(data, bytes) else json.dumps(value).encode()


@schemathesis.hook
def filter_case(_: object, case: Any) -> bool:
    """A body that may be left out may be null, as typed clients send it. No schema says so: generated clients
    would ask what null means.
    """
    described = case.operation.definition.raw.get("requestBody", {})
    return case.body is not None or bool(described.get("required"))


# ---- refusals of valid data

_MEANT = (
    "it does not go with ",
    "the reason of an end has at most ",
    "it is at least as large as count",
    "it goes with ",
    # Rules of entries for later.
    *("give one of at, ", "five fields: ", "a time zone by its name", "it is for cron alone", "cron: Bad "),
    *("it would never be due", "at most ten years", "until and count are for", "an entry for later gets "),
    *("a name is for one entry", "give entries for later names", "has schedules", "each name once"),
    *("it is a time of RFC 3339", "there is a schedule "),
    *("its ID when it is appended", "Wrong number of fields", "here it is `*`, or left out"),
    " goes with Weir-",
    "only a read with `after` can wait",
    "a trim has one of maxlen, minid, older_than_ms",
    "a group's entries are delivered before a gap is known",
    "a group has a position of its own",
    "/group: the group name, a string, is missing",
    "/consumer: the consumer name, a string, is missing",
    "/streams/",  # `>` goes with a group alone, `$` without one
    "this is not base64",
    "a dead letter in the same stream would be read again",
    "set the group's dead_letter first",
    "the entries go to another consumer",
    "the Idempotency-Key was used with another body",
    " was stored with other streams or another number of entries",
    "the stream's last ID is ",  # If-Match
    "the stream has changed",  # If-Match
    "it is a time that has not come yet",
    "a stream has one of expires_at and expires_in_ms",
    "with acknowledged it is true, or not there",
    *(
        "with paused it is true, or not there",
        "say paused or paused_until",
        "no run is left behind the pause",
    ),
    *("ordered_by is the name of a field", "in_flight_per_key needs ordered_by"),
    "it names exactly one of token, jti and subject",
    "a prefix has ",
    "a name with the prefix has ",
    "and If-Match asks for one",
    "all grants of a token have the same prefix, or none has one",
    "there is a backup of this name already",
    "a plan needs streams, with their cursors, or a pattern",
    "the stream is not one of the plan's",
)


@schemathesis.check
def meant_refusals_alone(
    _: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case[Any]
) -> None:
    """Valid data is refused for what OpenAPI cannot say, and for nothing else."""
    assert case.meta is not None, "schemathesis made the case"
    if not case.meta.generation.mode.is_positive or response.status_code not in (400, 412, 422):
        return
    result = response.json()
    if "error" in result and "code" not in result:
        return  # a command's, by Redis's rules
    if case.operation.definition.raw["operationId"] == "addEntriesNdjson":
        return  # a schema cannot say what lines are
    detail = result["detail"]
    assert any(words in detail for words in _MEANT), f"valid data was refused: {detail}"
