"""Names as parts of the API's paths, for `Client.call`: `stream_path("orders")` is `/v1/streams/orders`.

Knows: which names can stand in a path; a slash in one is `%2F`. Must never know: what is asked for there.
"""

from urllib.parse import quote

from weir.errors import InvalidNameError


def segment(name: str, what: str) -> str:
    """A name as one segment of a path; `what` it names is said in errors. Raises InvalidNameError."""
    if any(part in ("", ".", "..") for part in name.split("/")):
        rule = "it must not be '', '.' or '..', nor hold such a part between slashes"
        raise InvalidNameError(f"{name!r} is not a {what} name: {rule}")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError:
        raise InvalidNameError(f"the {what} name is not valid UTF-8") from None


def stream_path(stream: str) -> str:
    """The path of a stream. Raises InvalidNameError."""
    return f"/v1/streams/{segment(stream, 'stream')}"


def group_path(stream: str, group: str) -> str:
    """The path of a group. Raises InvalidNameError."""
    return f"{stream_path(stream)}/groups/{segment(group, 'group')}"


def schedule_path(stream: str, schedule: str) -> str:
    """The path of a schedule. Raises InvalidNameError."""
    return f"{stream_path(stream)}/schedules/{segment(schedule, 'schedule')}"


def consumer_path(stream: str, group: str, consumer: str) -> str:
    """The path of a consumer. Raises InvalidNameError."""
    return f"{group_path(stream, group)}/consumers/{segment(consumer, 'consumer')}"
