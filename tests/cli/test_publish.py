"""`weir publish`: three formats in, nothing twice, nothing lost, each refusal with the line it is about.

Knows: inputs, and what must be in the stream afterwards. Must never know: how batches are made.
"""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

import pytest

from tests.cli.command import WEIR, begun, environment, on_a_terminal, redis, values, weir
from tests.cli.link import BAD_GATEWAY, BUSY, LOSE, PASS, STARTING, link
from tests.server import Server, free_port
from weir.cli import publish

ENTRIES: Final = 20_000
WAIT_S_MAX: Final = 30.0


def numbered(path: Path, count: int = ENTRIES) -> Path:
    """A file of NDJSON with `n` from 0."""
    path.write_text("".join(f'{{"n":{number}}}\n' for number in range(count)))
    return path


def length_beyond(url: str, stream: str, least: int) -> int:
    """Wait until a stream has more than `count` entries; returns its length."""
    deadline = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < deadline:
        if (length := int(redis(url, "XLEN", stream))) > least:
            return length
    raise AssertionError(f"{stream} never had more than {least} entries")


def test_ndjson_is_stored_as_it_is(url: str, stream: str) -> None:
    """A line is an entry, bare or as an envelope; blank lines are none; numbers keep their text."""
    text = b'{"a":1.50,"b":true}\n\n  {"fields":[["c","x"],["c","y"]]}\r\n{"id":"*","fields":{"d":"z"}}'
    done = weir(url, "publish", stream, given=text)
    assert done.code == 0, done.err
    assert done.out.startswith("stored 3 entries; the last ID is ")
    assert [flat for _, flat in redis(url, "XRANGE", stream, "-", "+")] == [
        ["a", "1.50", "b", "true"],
        ["c", "x", "c", "y"],
        ["d", "z"],
    ]


def test_fields_are_words(url: str, stream: str) -> None:
    """One entry, its fields in order, a name twice too; what follows the first = is the value."""
    done = weir(url, "publish", stream, "item=a pear", "url=http://x/?a=b", "item=", "ü=\U0001f600")
    assert done.code == 0, done.err
    assert done.out.startswith("stored 1 entry; the last ID is ")
    ((_, flat),) = redis(url, "XRANGE", stream, "-", "+")
    assert flat == ["item", "a pear", "url", "http://x/?a=b", "item", "", "ü", "\U0001f600"]
    again = ("publish", stream, "n=1", "--resume-key", "one", "--json")
    assert [weir(url, *again).objects[0]["stored"] for _ in range(2)] == [1, 0]
    assert redis(url, "XLEN", stream) == 2


def test_a_word_that_is_a_file_is_the_file(url: str, stream: str, tmp_path: Path) -> None:
    """Beside other words it is a field, as they are."""
    (tmp_path / "n=1").write_text('{"of":"the file"}\n')
    (tmp_path / "plain").write_text('{"of":"plain"}\n')
    for words in (["n=1"], ["n=1", "m=2"], ["plain"]):
        done = subprocess.run(
            [*WEIR, "publish", stream, *words],
            cwd=tmp_path,
            env=environment(url),
            capture_output=True,
            check=True,
        )
        assert b"stored 1 entry" in done.stdout
    found = [flat for _, flat in redis(url, "XRANGE", stream, "-", "+")]
    assert found == [["of", "the file"], ["n", "1", "m", "2"], ["of", "plain"]]


@pytest.mark.parametrize(
    "words",
    [["a=1", "b"], ["b", "a=1"], ["=1"], ["a=1", "-"], ["a=1", "--format", "csv"], ["a=\udcff"], ["b", "c"]],
)
def test_words_that_are_no_fields_are_usage_errors(url: str, stream: str, words: list[str]) -> None:
    """Nothing is stored, not even of the words that were right."""
    done = weir(url, "publish", stream, *words)
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert redis(url, "XLEN", stream) == 0


def test_csv_takes_its_fields_from_the_header(url: str, stream: str, tmp_path: Path) -> None:
    """Quoted line ends, commas and empty values arrive; a byte order mark is no part of the first name."""
    file = tmp_path / "table.CSV"
    file.write_bytes('\ufeffname,note\r\nann,"two\nlines, one comma"\n\nbö,\n'.encode())
    done = weir(url, "publish", stream, str(file), "--json")
    assert done.objects[0]["stored"] == 2, done.err
    found = [flat for _, flat in redis(url, "XRANGE", stream, "-", "+")]
    assert found == [["name", "ann", "note", "two\nlines, one comma"], ["name", "bö", "note", ""]]


def test_plain_lines_are_the_field_data(url: str, stream: str) -> None:
    """A line is stored without its end, an empty one too; bytes that are not UTF-8 stay what they are."""
    assert weir(url, "publish", stream, "--format", "lines", given=b"one\r\n\n{x\n\xff\x00").code == 0
    read = weir(url, "read", stream, "--json").objects
    assert [entry["fields"]["data"] for entry in read] == ["one", "", "{x", "/wA="]
    assert [entry.get("encoding") for entry in read] == [None, None, None, "base64"]


@pytest.mark.parametrize(
    ("name", "text", "field"),
    [("a.txt", b"a,b\n1,2\n", "data"), ("a.csv", b"a,b\n1,2\n", "b"), ("a.txt", b' {"b":"2"}\n', "b")],
)
def test_the_format_is_told_by_name_and_first_line(
    url: str, stream: str, tmp_path: Path, name: str, text: bytes, field: str
) -> None:
    """CSV by its name, NDJSON by its first brace; a comma alone proves nothing."""
    (tmp_path / name).write_bytes(text)
    assert weir(url, "publish", stream, str(tmp_path / name)).code == 0
    assert field in redis(url, "XRANGE", stream, "-", "+")[0][1]


@pytest.mark.parametrize("nothing", [b"", b"\n\n"])
def test_nothing_to_publish_is_fine(url: str, stream: str, nothing: bytes) -> None:
    """An empty input stores nothing and makes no stream."""
    done = weir(url, "publish", stream, "--format", "ndjson", given=nothing)
    assert (done.code, done.out) == (0, "stored 0 entries\n")
    assert redis(url, "EXISTS", stream) == 0


def test_a_file_is_stored_once_however_often_it_is_published(url: str, stream: str, tmp_path: Path) -> None:
    """By name or as standard input; a new --resume-key says that it is meant again."""
    file = numbered(tmp_path / "rows.ndjson", 2_500)
    assert weir(url, "publish", stream, str(file), "--json").objects[0]["stored"] == 2_500
    again = weir(url, "publish", stream, str(file), "--json").objects[0]
    assert (again["stored"], again["repeated"], again["batches"]) == (0, 2_500, 3)
    with file.open("rb") as content:
        redirected = subprocess.run(
            [*WEIR, "publish", stream], stdin=content, capture_output=True, env=environment(url), check=True
        )
    assert b"2,500 were stored before" in redirected.stdout
    assert weir(url, "publish", stream, str(file), "--resume-key", "again").code == 0
    assert redis(url, "XLEN", stream) == 5_000


def test_what_another_program_has_read_of_standard_input_is_left_out(
    url: str, stream: str, tmp_path: Path
) -> None:
    """As in `{ read -r title; weir publish s; } < FILE`. The rest is stored once, as a file is."""
    file = tmp_path / "rows"
    file.write_bytes(b"title\none\ntwo\n")
    for _ in range(2):
        with file.open("rb", buffering=0) as content:
            content.seek(len(b"title\n"))
            subprocess.run(
                [*WEIR, "publish", stream],
                stdin=content,
                stdout=subprocess.DEVNULL,
                env=environment(url),
                check=True,
            )
    assert values(url, stream, "data") == ["one", "two"]


@pytest.mark.parametrize(("count", "said"), [(3, False), (4, True)])
def test_more_batches_than_the_gateway_remembers_are_said(
    url: str,
    stream: str,
    count: int,
    said: bool,  # noqa: FBT001 - a parameter
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same again would store some twice; as many as it remembers are stored once."""
    monkeypatch.setattr(publish, "REMEMBERED_KEYS_MAX", 3)
    publish.publish(stream, [str(numbered(tmp_path / "rows.ndjson", count))], batch=1, url=url)
    assert ("would store some twice" in capsys.readouterr().err) == said


def test_the_same_words_through_a_pipe_are_new_each_time(url: str, stream: str) -> None:
    """Two equal heartbeats are two entries, unless a --resume-key says that they are one run."""
    for _ in range(2):
        assert weir(url, "publish", stream, given=b"alive\n").code == 0
    for _ in range(2):
        assert weir(url, "publish", stream, "--resume-key", "one run", given=b"alive\n").code == 0
    assert redis(url, "XLEN", stream) == 3


def test_a_pipe_is_sent_as_it_comes(url: str, stream: str) -> None:
    """A batch that is not full does not keep back what has been said."""
    process = begun(url, "publish", stream)
    assert process.stdin is not None
    for number in range(3):
        process.stdin.write(f"line {number}\n")
        process.stdin.flush()
        assert length_beyond(url, stream, number) == number + 1
    out, err = process.communicate(timeout=WAIT_S_MAX)
    assert out.startswith("stored 3 entries"), err


@pytest.mark.parametrize("batch", [1, 37, 1_000])
def test_a_publish_killed_half_way_goes_on(url: str, stream: str, tmp_path: Path, batch: int) -> None:
    """After kill -9, twice, the same command stores the rest: nothing twice, nothing lost, all in order."""
    count = 2_000 if batch == 1 else ENTRIES
    words = ("publish", stream, str(numbered(tmp_path / "rows.ndjson", count)), "--batch", str(batch))
    least = 0
    for _ in range(2):
        process = begun(url, *words)
        stored = length_beyond(url, stream, least)
        process.kill()
        process.communicate()
        assert stored < count, "it was killed before its end"
        least = stored + batch
    done = weir(url, *words, "--json")
    assert done.code == 0, done.err
    outcome = done.objects[0]
    assert outcome["repeated"] > 0
    assert outcome["stored"] + outcome["repeated"] == count
    assert values(url, stream, "n") == [str(number) for number in range(count)]


def test_ctrl_c_says_what_is_stored_and_how_to_go_on(url: str, stream: str, tmp_path: Path) -> None:
    """An interrupted command fails with one line that is enough to finish the work."""
    words = ("publish", stream, str(numbered(tmp_path / "rows.ndjson")), "--batch", "20")
    process = begun(url, *words)
    length_beyond(url, stream, 0)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WAIT_S_MAX)
    assert process.returncode == 1
    assert err.count("\n") == 1, err
    assert "run it again to go on" in err
    assert weir(url, *words).code == 0
    assert redis(url, "XLEN", stream) == ENTRIES


def test_a_publish_outlives_its_server(tmp_path: Path) -> None:
    """The gateway is killed with -9 and started again meanwhile: nothing twice, nothing lost."""
    with Server(tmp_path / "data") as server:
        words = ("publish", "s", str(numbered(tmp_path / "rows.ndjson")), "--batch", "50")
        process = begun(server.url, *words)
        length_beyond(server.url, "s", 0)
        server.restart()
        _, err = process.communicate(timeout=WAIT_S_MAX)
        assert process.returncode == 0, err
        assert values(server.url, "s", "n") == [str(number) for number in range(ENTRIES)]


def test_a_lost_answer_is_asked_for_again_under_the_same_key(server: Server, stream: str) -> None:
    """Busy, starting, and an answer that never arrives: tried again, and stored once."""
    with link(server.port, PASS, LOSE, BUSY, STARTING, LOSE) as flaky:
        done = weir(flaky.url, "publish", stream, "--batch", "1", "--resume-key", "k", given=b"1\n2\n3\n")
        assert done.code == 0, done.err
        assert "trying again" in done.err
    assert len(flaky.seen) == 7
    assert len(set(flaky.seen)) == 3
    assert values(server.url, stream, "data") == ["1", "2", "3"]


def test_patience_ends(server: Server, stream: str) -> None:
    """With --retry-for 0 the first failure is the last, and is printed in one line; one second ends too."""
    with link(server.port, STARTING) as flaky:
        done = weir(flaky.url, "publish", stream, "--retry-for", "0", given=b"1\n")
    assert done.code == 1
    assert done.err == "weir: the gateway answered 503 Service Unavailable\n"
    away = f"http://127.0.0.1:{free_port()}"
    done = weir(away, "publish", stream, "--retry-for", "1s", given=b"1\n")
    assert done.code == 1
    assert "connection refused; trying again" in done.err


def test_a_proxy_without_a_gateway_behind_it_is_asked_again(server: Server, stream: str) -> None:
    """The key makes that safe. The proxy's own page stays out of the terminal: its status is shown."""
    with link(server.port, BAD_GATEWAY, LOSE) as flaky:
        done = weir(flaky.url, "publish", stream, given=b"1\n")
    gateway = f"weir: the gateway at {flaky.url}"
    away = f"{gateway} is away: the gateway answered 502 Bad Gateway; trying again\n"
    assert done.err == f"{away}{gateway} is back\n"
    assert len(flaky.seen) == 3
    assert values(server.url, stream, "data") == ["1"]


def test_a_refusal_names_the_line_of_the_input(url: str, stream: str) -> None:
    """Not the entry of the batch: blank lines count, and so do the batches before."""
    text = b'{"a":1}\n{"a":2}\n\n{"a":3}\n{"a":[4]}\n'
    done = weir(url, "publish", stream, "--batch", "2", "--resume-key", "k", given=text)
    assert done.code == 1
    stored, refused = done.err.splitlines()
    assert stored == (
        "weir: stored 2 entries; run it again to go on, with --resume-key k if the input is mended"
    )
    assert refused.startswith("weir: line 5: a: values are strings, numbers or booleans")
    assert refused.endswith(" (invalid)")
    mended = text.replace(b"[4]", b"4")
    assert weir(url, "publish", stream, "--batch", "2", "--resume-key", "k", given=mended).code == 0
    assert values(url, stream, "a") == ["1", "2", "3", "4"]


def test_another_input_under_the_same_name_is_refused(url: str, stream: str) -> None:
    """Mixing two inputs under one name would leave parts of both."""
    assert weir(url, "publish", stream, "--resume-key", "k", given=b"1\n").code == 0
    done = weir(url, "publish", stream, "--resume-key", "k", given=b"2\n")
    assert done.code == 1
    assert "other input was published before" in done.err
    assert done.err.endswith("(idempotency_mismatch)\n")
    assert values(url, stream, "data") == ["1"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"a,b\n1\n", "line 2: 1 values for 2 columns"),
        (b"a,a\n1,2\n", "line 1: the columns of CSV need names, each its own"),
        (b"a,\n1,2\n", "line 1: the columns of CSV need names, each its own"),
        (b'a\n"open\n', "line 2: unexpected end of data"),
        (b"a\n\xff\n", "line 2 is not UTF-8"),
    ],
)
def test_csv_that_cannot_be_read_is_refused_by_line(
    url: str, stream: str, text: bytes, sentence: str
) -> None:
    """A row that does not fit its header is a mistake, and none of its batch is stored."""
    done = weir(url, "publish", stream, "--format", "csv", given=text)
    assert (done.code, done.err) == (1, f"weir: {sentence}\n")
    assert redis(url, "EXISTS", stream) == 0


def test_progress_is_for_terminals(url: str, stream: str, tmp_path: Path) -> None:
    """On a terminal standard error shows how far it is; the outcome on standard output is the same."""
    file = numbered(tmp_path / "rows.ndjson")
    out, shown = on_a_terminal(url, "publish", stream, str(file), "--json")
    assert json.loads(out)["stored"] == ENTRIES
    assert b"entries" in shown
