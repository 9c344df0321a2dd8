"""`weir read`: ranges, from either end, however long.

Knows: what must have been printed. Must never know: pages.
"""

from typing import Final
from urllib.parse import quote

import pytest

from tests.cli.command import post, redis, weir
from weir import Client
from weir.cli.read import PAGE_ENTRIES_MAX, pages

BEYOND_A_PAGE: Final = 2_345


def test_a_range_is_read_across_pages(url: str, stream: str) -> None:
    """--all and a large --count give everything in order, over any number of answers; --count is exact."""
    entries = [{"id": f"{number}-0", "fields": {"n": str(number)}} for number in range(1, BEYOND_A_PAGE + 1)]
    redis(url, "XGROUP", "CREATE", stream, "g", "0", "MKSTREAM")
    post(
        url, f"/v1/streams/{stream.replace(' ', '%20').replace('ü', '%C3%BC')}/entries", {"entries": entries}
    )
    assert weir(url, "read", stream, "--all", "--json").objects == entries
    assert weir(url, "read", stream, "--all", "--reverse", "--json").objects == entries[::-1]
    assert weir(url, "read", stream, "--count", "2000", "--json").objects == entries[:2000]
    moment = "1970-01-01T00:00:01.200Z"
    assert weir(url, "read", stream, "--all", "--since", moment, "--json").objects == entries[1_199:]
    until = weir(url, "read", stream, "--all", "--reverse", "--until", moment, "--json")
    assert until.objects == entries[1_199::-1]
    assert weir(url, "read", stream, "--json").objects == entries[:100]


def test_a_range_ends_where_another_stream_takes_the_name(
    url: str, stream: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What follows is not of the range; it is said, beside the output."""
    with Client(url) as client:
        client.publish_batch(stream, [{"n": number} for number in range(BEYOND_A_PAGE)])
        found = pages(client, stream, {"start": "-", "end": "+"}, count=None, reverse=False)
        assert len(next(found).entries) == PAGE_ENTRIES_MAX
        client.delete_stream(stream)
        client.publish(stream, {"n": "another's"}, id="3-0")
        assert list(found) == []
    assert f"gap: the stream {stream!r} was deleted and made again after" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--start", "2-0"], [2, 3]),
        (["--start", "(2-0"], [3]),
        (["--end", "(2-0"], [1]),
        (["--start", "2", "--end", "2"], [2]),
        (["--reverse", "--count", "2"], [3, 2]),
        (["--since", "1970-01-01T00:00:00.002Z"], [2, 3]),
        (["--until", "1970-01-01T00:00:00.002+00:00"], [1, 2]),
        (["--start", "9"], []),
    ],
)
def test_bounds_are_as_everywhere(url: str, stream: str, words: list[str], found: list[int]) -> None:
    """IDs, incomplete ones, exclusive ones, and times."""
    for number in (1, 2, 3):
        redis(url, "XADD", stream, f"{number}-0", "n", number)
    assert weir(url, "read", stream, *words).lines == [f"{number}-0 n={number}" for number in found]


def test_a_stream_that_is_not_there_is_named(url: str, stream: str) -> None:
    """A name may be misspelt. An empty stream is silent."""
    assert weir(url, "read", stream) == (1, "", f'weir: there is no stream "{stream}"\n')
    redis(url, "XGROUP", "CREATE", stream, "g", "0", "MKSTREAM")
    assert weir(url, "read", stream) == (0, "", "")


def test_a_refusal_is_one_line_with_its_code(url: str, stream: str) -> None:
    """A refusal is printed in the gateway's words."""
    done = weir(url, "read", stream, "--start", "\x1b[31m")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert done.err.endswith("(malformed_id)\n")
    assert "\x1b" not in done.err


def test_a_bound_is_given_once(url: str, stream: str) -> None:
    """A time and an ID for the same end contradict each other."""
    assert weir(url, "read", stream, "--start", "1", "--since", "1970-01-01T00:00:00Z").code == 2


def test_a_range_that_goes_on_says_so(url: str, stream: str) -> None:
    """One line beside the output, with what shows the rest; none where a number was asked for."""
    entries = [{"id": f"{number}-0", "fields": {"n": "1"}} for number in range(1, 103)]
    post(url, f"/v1/streams/{quote(stream)}/entries", {"entries": entries})
    rest = "100 entries, and there are more: --all or --count shows them"
    assert weir(url, "read", stream).err == f"weir: {rest}, --start '(100-0' goes on\n"
    assert weir(url, "read", stream, "--reverse").err == f"weir: {rest}, --end '(3-0' goes on\n"
    assert weir(url, "read", stream, "--start", "(100-0").err == ""
    assert weir(url, "read", stream, "--count", "100").err == ""
