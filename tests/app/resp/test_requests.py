"""From bytes to commands: cut anywhere they give the same commands, and reserve no memory in advance."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.doors.resp.codec import (
    INLINE_BYTES_MAX,
    UNAUTHENTICATED,
    RequestLimits,
    RespCodec,
    Words,
    split_inline,
)

LIMITS = RequestLimits(words_max=20_000, bytes_max=1 << 20)


def packed(words: Words) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def read(*pieces: bytes, limits: RequestLimits = LIMITS) -> tuple[list[Words], str | None]:
    """The commands in these pieces, and the sentence of what is wrong behind them."""
    reader, found = RespCodec(), list[Words]()
    for piece in pieces:
        reader.feed(piece, limits)
        while reader.commands or reader.error is None:
            if not reader.commands:
                before = reader.waiting_bytes
                reader.feed(b"", limits)
                if not reader.commands and reader.waiting_bytes == before:
                    break
                continue
            found.append(reader.commands.popleft())
    return found, None if reader.error is None else str(reader.error)


words_strategy = st.lists(
    st.one_of(
        st.binary(max_size=20),
        st.sampled_from(
            [b"*", b"+", b"=x", b"(1-0", b"\r\n", b"*99999\r\n", b"\r\n*99999\r\n$1\r\n", b"x" * 300]
        ),
    ),
    min_size=1,
    max_size=8,
)


@given(words_strategy, st.lists(words_strategy, max_size=3), st.integers(1, 4))
def test_commands_of_one_length_are_the_same_commands(words: Words, others: list[Words], times: int) -> None:
    """As are commands nearly of one length: each has as many words as the first, but for what is inside."""
    alike = [words, *[(other * len(words))[: len(words)] for other in others]] * times
    whole = b"".join(map(packed, alike))
    assert read(whole) == (alike, None)
    assert read(whole + packed(words)[:-1])[0] == alike
    longer = [*alike, [*words, b"x"]]
    assert read(b"".join(map(packed, longer))) == (longer, None)


def test_alike_commands_keep_the_limit_of_words() -> None:
    """Two commands at the limit, and of one word more."""
    limits = RequestLimits(words_max=3, bytes_max=1_000)
    assert read(packed([b"a"] * 3) * 2, limits=limits) == ([[b"a"] * 3] * 2, None)
    assert read(packed([b"a"] * 4) * 2, limits=limits) == ([], "invalid multibulk length")


def test_a_wrong_header_ends_alike_commands() -> None:
    """The commands before it are read. A word that is longer than announced is cut, as in Redis."""
    before = packed([b"PING"]) * 2
    assert read(before + b"*1\r\n+PING\r\n") == ([[b"PING"]] * 2, "expected '$', got '+'")
    assert read(before + b"*1\r\n$3\r\nPING\r\n")[0] == [[b"PING"], [b"PING"], [b"PIN"]]
    assert read(b"*1\r\n$3\r\nPING\r\n" * 2)[0] == [[b"PIN"]] * 2


@given(st.lists(words_strategy, max_size=8), st.data())
def test_every_cut_gives_the_same_commands(commands: list[Words], data: st.DataObject) -> None:
    """Words may hold anything, headers and line ends too."""
    whole = b"".join(map(packed, commands))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert read(*pieces) == (commands, None)


@given(st.binary(max_size=200), st.integers(0, 200))
def test_garbage_is_read_alike_by_both_readers(garbage: bytes, cut: int) -> None:
    """The fast one gives up where the walker would read something else."""
    behind = packed([b"PING"]) + garbage
    slowly = read(*[behind[at : at + 1] for at in range(len(behind))])
    assert read(behind) == slowly
    assert read(behind[:cut], behind[cut:]) == slowly


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        (b"*1000000000\r\n", "invalid multibulk length"),
        (b"*1000000000000000000000\r\n", "invalid multibulk length"),
        (b"*20001\r\n", "invalid multibulk length"),
        (b"*abc\r\n", "invalid multibulk length"),
        (b"*1\r\n$1000000000\r\n", "invalid bulk length"),
        (b"*1\r\n$1048577\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        (b"*1\r\n*1000000000\r\n", "expected '$', got '*'"),
        (b"*2\r\n$4\r\nPING\r\n%1000000000\r\n", "expected '$', got '%'"),
        (b"*1\r\n+PING\r\n", "expected '$', got '+'"),
        (b"x" * INLINE_BYTES_MAX, "too big inline request"),
        (b"*" + b"1" * INLINE_BYTES_MAX, "too big mbulk count string"),
        (b"*1\r\n$" + b"1" * INLINE_BYTES_MAX, "too big bulk count string"),
        (b'SET "a\r\n', "unbalanced quotes in request"),
        (b'SET "a"b\r\n', "unbalanced quotes in request"),
    ],
)
def test_what_is_no_request_is_refused_before_it_costs_memory(sent: bytes, sentence: str) -> None:
    """With Redis's sentence, in one piece and byte by byte, also behind a good command."""
    tracemalloc.start()
    assert read(sent) == ([], sentence)
    assert read(packed([b"PING"]) + sent) == ([[b"PING"]], sentence)
    assert tracemalloc.get_traced_memory()[1] < 3 << 20
    tracemalloc.stop()
    if len(sent) < 100:
        assert read(*[sent[at : at + 1] for at in range(len(sent))]) == ([], sentence)


def test_nothing_is_read_behind_an_error() -> None:
    """The connection ends there."""
    assert read(b"*x\r\n" + packed([b"PING"])) == ([], "invalid multibulk length")


def test_before_auth_a_command_is_small() -> None:
    """Ten words and 16 KiB; one more is refused at its header."""
    small = [b"AUTH", *[b"x"] * 9]
    assert read(packed(small), limits=UNAUTHENTICATED) == ([small], None)
    assert read(packed([*small, b"x"]), limits=UNAUTHENTICATED) == ([], "unauthenticated multibulk length")
    large = [b"AUTH", b"x" * ((16 << 10) - 4)]
    assert read(packed(large), limits=UNAUTHENTICATED) == ([large], None)
    assert read(b"*2\r\n$4\r\nAUTH\r\n$16381\r\n", limits=UNAUTHENTICATED) == (
        [],
        "unauthenticated bulk length",
    )


def test_behind_auth_the_limits_are_the_usual_ones() -> None:
    """In the same read: a pipelining client does not wait for the reply to AUTH."""
    reader, large = RespCodec(), [b"XADD", *[b"x"] * 50]
    reader.feed(packed([b"AUTH", b"x"]) + packed(large) + packed([b"PING"]), UNAUTHENTICATED)
    assert list(reader.commands) == [[b"AUTH", b"x"]]
    reader.commands.clear()
    reader.feed(b"", LIMITS)
    assert list(reader.commands) == [large, [b"PING"]]


def test_commands_without_words_are_skipped() -> None:
    """Redis does so: an empty line keeps a connection alive."""
    assert read(b"*0\r\n*-1\r\n\r\n" + packed([b"PING"]) + b"\n") == ([[b"PING"]], None)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"PING", [b"PING"]),
        (b"  xadd\ts *  a   b ", [b"xadd", b"s", b"*", b"a", b"b"]),
        (b"set \"a b\" 'c d'", [b"set", b"a b", b"c d"]),
        (rb'set "\x41\n\t\"\\" ' + b"'it\\'s'", [b"set", b'A\n\t"\\', b"it's"]),
        (b"set \"\" ''", [b"set", b"", b""]),
        (b"", []),
    ],
)
def test_inline_commands_are_split_as_redis_does(line: bytes, words: Words) -> None:
    """People and health checks write them."""
    assert split_inline(line, LIMITS.words_max) == words


def test_a_client_that_drips_costs_as_much_as_any_other() -> None:
    """Ten thousand words byte by byte: each byte is looked at once or twice, not ten thousand times."""
    words = [b"XDEL", b"s", *[b"1-0"] * 10_000]
    sent = packed(words)
    assert read(*[sent[at : at + 1] for at in range(len(sent))]) == ([words], None)
