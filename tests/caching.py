"""What an answer lets caches do. Must never know: which answer it is."""

from collections.abc import Mapping


def is_asked_about(headers: Mapping[str, str], *, has_reader: bool = True) -> bool:
    """Whether no cache shows the answer without asking for it again; where it `has_reader`, none but the
    reader's own keeps it at all.
    """
    said = {word.strip().partition("=")[0].lower() for word in headers.get("cache-control", "").split(",")}
    fresh = {"max-age", "s-maxage", "immutable", "public", "stale-while-revalidate", "stale-if-error"}
    if said & fresh or "expires" in headers:
        return False
    if "no-store" in said:
        return True
    # What has no tag is had anew each time, so that nothing kept is ever shown.
    return "no-cache" in said and (not has_reader or "private" in said or "etag" not in headers)
