"""`weir log`: it shows what is in the files, also beside a running server, and repairs only after a yes."""

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from app.cli.directory import opened
from engine.log import Log as EngineLog
from tests.cli.command import Ended, fill, redis, weir, work
from tests.server import Server

NOWHERE = "http://127.0.0.1:9"
SEGMENT = "segment-1.weir"
Log = Callable[..., Ended]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a gateway that was stopped: five entries, a group with pending ones, a clean end."""
    data = tmp_path_factory.mktemp("log") / "data"
    with Server(data) as server:
        work(server.url, "orders")
        server.stop()
    return data


@pytest.fixture
def data(stopped: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    copy = tmp_path / "data"
    copy.mkdir(mode=0o700)
    for file in stopped.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def log(data: Path, command: str, *words: str, given: bytes = b"") -> Ended:
    return weir(NOWHERE, "log", command, "--data", str(data), *words, given=given)


def spoil(file: Path, at: int) -> None:
    """Flip a bit."""
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def contents(data: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in data.iterdir()}


def starts(data: Path) -> list[str]:
    """Serve the directory; the values of `n` in the stream."""
    with Server(data) as server:
        entries = redis(server.url, "XRANGE", "orders", "-", "+")
        assert server.stop() == 0
    return [fields[1] for _, fields in entries]


def test_a_sound_log_is_called_sound(data: Path) -> None:
    """File by file, for people and as one object for programs; nothing is touched."""
    before = contents(data)
    result = log(data, "check")
    assert (result.code, result.err) == (0, "")
    assert result.lines[0].split() == ["file", "position", "frames", "bytes", "state"]
    assert result.lines[1].split()[0] == SEGMENT
    assert result.lines[-1].startswith("sound: ")
    (verdict,) = log(data, "check", "--json").objects
    assert (verdict["state"], verdict["torn_bytes"], verdict["clean_stop"]) == ("sound", 0, True)
    assert verdict["files"][0]["bytes"] == (data / SEGMENT).stat().st_size
    assert contents(data) == before


def test_the_directory_may_come_from_the_environment(data: Path, tmp_path: Path) -> None:
    """As `weir serve` has it: from a file of settings, too."""
    file = tmp_path / "weir.toml"
    file.write_text(f'data = "{data}"\n')
    result = weir(NOWHERE, "log", "check", also={"WEIR_CONFIG": str(file)})
    assert result.lines[-1].startswith("sound: ")


def test_a_server_may_run_meanwhile(tmp_path: Path) -> None:
    """Looking takes no lock, and what is written meanwhile is no damage."""
    with Server(tmp_path / "data") as server:
        fill(server.url, "orders", 20)
        result = log(tmp_path / "data", "check")
        assert (result.code, result.err) == (0, "")
        dumped = log(tmp_path / "data", "dump")
        assert dumped.code == 0
        assert len(dumped.lines) > 20
        assert log(tmp_path / "data", "repair").code == 4
        assert redis(server.url, "XLEN", "orders") == 20


def test_a_torn_tail_is_no_damage(data: Path) -> None:
    """A start would cut it, and says where it would keep it."""
    size = (data / SEGMENT).stat().st_size
    with (data / SEGMENT).open("ab") as file:
        file.write(bytes(512))
    result = log(data, "check")
    assert result.code == 0
    assert f"in {SEGMENT}.torn-{size}" in result.out
    (verdict,) = log(data, "check", "--json").objects
    assert (verdict["state"], verdict["torn_bytes"]) == ("torn", 512)
    assert (data / SEGMENT).stat().st_size == size + 512


def test_damage_is_refused_with_its_place_and_what_to_do(data: Path) -> None:
    """File, offset, reason, remedy; exit code 3, of the dump too, which shows what it can."""
    whole = len(log(data, "dump").lines)
    spoil(data / SEGMENT, 300)
    result = log(data, "check")
    assert result.code == 3
    assert result.err.startswith(f"weir: {SEGMENT}, offset ")
    assert "run `weir log repair`" in result.err
    (verdict,) = log(data, "check", "--json").objects
    assert verdict["state"] == "refused"
    assert verdict["refusal"]["file"] == SEGMENT
    assert verdict["files"][0]["fault"]["offset"] == verdict["refusal"]["offset"]
    dumped = log(data, "dump")
    assert dumped.code == 3
    assert len(dumped.lines) < whole
    assert dumped.objects[-1]["damage"] == verdict["refusal"]["reason"].removesuffix(", in what was synced")


def test_a_directory_is_free_after_each_command(data: Path) -> None:
    """Within one process, too."""
    for _ in range(2):
        with opened(data) as storage:
            storage.lock()


@pytest.mark.parametrize("command", ["check", "dump", "repair"])
def test_what_is_no_log_is_refused(tmp_path: Path, command: str) -> None:
    """A mistyped path, an empty directory: exit code 3, and nothing is made there."""
    for path in (tmp_path / "nowhere", tmp_path):
        result = log(path, command)
        assert result.code == 3
        assert result.err.startswith("weir: data directory")
        assert "Traceback" not in result.err
    assert not [file for file in tmp_path.iterdir() if file.name != "lock"]


def test_a_dump_has_every_record(data: Path) -> None:
    """Names, IDs and entries as readers know them; times and counts as they are."""
    frames = log(data, "dump").objects
    assert [frame["sequence"] for frame in frames] == list(range(len(frames)))
    assert (frames[0]["kind"], frames[-1]["kind"], frames[-1]["clean"]) == ("FILE", "MARK", True)
    records = [record for frame in frames for record in frame.get("records", ())]
    kinds = {record["record"] for record in records}
    assert {"CreateStream", "Append", "CreateGroup", "CreateConsumer", "Own", "MoveGroup"} <= kinds
    (first, *_) = [record for record in records if record["record"] == "Append"]
    assert first == {"record": "Append", "stream": "orders", "texts": [{"id": "1-0", "fields": {"n": "1"}}]}
    (owned, *_) = [record for record in records if record["record"] == "Own"]
    assert (owned["group"], owned["consumer"], owned["ids"]) == ("g", "anna", ["1-0", "2-0"])


def test_bytes_in_a_dump_are_base64(tmp_path: Path) -> None:
    """Those that are no text; a terminal is sent nothing that it would obey."""
    with Server(tmp_path / "data") as server:
        body = json.dumps({"fields": {"v": base64.b64encode(b"\xff\x1b[2J").decode()}, "encoding": "base64"})
        given = body.encode() + b"\n"
        assert weir(server.url, "publish", "s", given=given).code == 0
        server.stop()
    dumped = log(tmp_path / "data", "dump")
    records = [record for frame in dumped.objects for record in frame.get("records", ())]
    (entry,) = [record["texts"][0] for record in records if record["record"] == "Append"]
    assert base64.b64decode(entry["fields"]["v"]) == b"\xff\x1b[2J"
    answers = [record for record in records if record["record"] == "RememberAnswer"]
    assert all(base64.b64decode(answer["digest"]) for answer in answers)
    assert dumped.out.isascii()
    assert "\x1b" not in dumped.out


def test_a_repair_asks_first(data: Path) -> None:
    """It names to the byte what would be lost; without a yes nothing changes."""
    spoil(data / SEGMENT, 300)
    before = contents(data)
    result = log(data, "repair", given=b"n\n")
    assert result.code == 1
    assert "given up are" in result.out
    assert "nothing more was changed" in result.err
    assert contents(data) == {**before, "lock": contents(data)["lock"]}


def test_a_repaired_log_starts(data: Path) -> None:
    """With what was before the damage; the rest stays beside it, and a second repair finds nothing to do."""
    spoiled = (data / SEGMENT).read_bytes()
    at = spoiled.index(b'{"id":"4-0"')
    spoil(data / SEGMENT, at + 20)
    broken = (data / SEGMENT).read_bytes()
    result = log(data, "repair", "--yes")
    assert (result.code, result.err) == (0, "")
    assert (data / f"{SEGMENT}.set-aside").read_bytes() == broken
    assert log(data, "check").code == 0
    assert "nothing to repair" in log(data, "repair").out
    assert starts(data) == ["1", "2", "3"]


def test_a_repair_without_loss_loses_nothing(data: Path) -> None:
    """A torn tail, and a manifest that is gone or broken."""
    (data / "manifest").unlink()
    assert starts_refused(data) == 3
    assert "the files prove each other complete" in log(data, "repair", "--yes").out
    (data / "manifest").write_bytes(b"weir log 1\r\n")
    assert log(data, "repair", given=b"y\n").code == 0
    assert (data / "manifest.set-aside").read_bytes() == b"weir log 1\r\n"
    with (data / SEGMENT).open("ab") as file:
        file.write(b"torn")
    assert log(data, "repair", "--yes").code == 0
    assert starts(data) == ["1", "2", "3", "4", "5"]


def starts_refused(data: Path) -> int:
    return weir(NOWHERE, "serve", "--data", str(data), "--port", "0").code


def test_what_cannot_be_saved_is_told(data: Path) -> None:
    """Exit code 3, and nothing is changed."""
    spoil(data / SEGMENT, 0)
    before = contents(data)
    result = log(data, "repair", "--yes")
    assert result.code == 3
    assert "restore a backup" in result.err
    assert contents(data) == {**before, "lock": contents(data)["lock"]}


@pytest.mark.parametrize(
    "command", ["serve", "check", "check --json", "dump", "repair --yes", "rewrite", "restore"]
)
def test_a_log_of_a_later_version_is_not_called_damaged(data: Path, tmp_path: Path, command: str) -> None:
    """One exit code for all, as for damage, with the remedy; nothing is changed."""
    with opened(data) as storage:
        opened_log = EngineLog.open(storage)
        opened_log.stage(msgspec.msgpack.encode([(199, "orders", b"")]))
        opened_log.close()
    before = contents(data)
    if command == "serve":
        ended = weir(NOWHERE, "serve", "--data", str(data), "--port", "0")
    elif command == "restore":
        ended = weir(NOWHERE, "restore", str(data), "--data", str(tmp_path / "restored"))
    else:
        ended = log(data, *command.split())
    assert ended.code == 3
    said = ended.err + ended.out
    assert "newer version (record 199)" in said
    assert "run that version" in said
    assert not re.search("bug|repair|payload|Traceback", said)
    assert {**contents(data), "lock": b""} == {**before, "lock": b""}


def test_a_rewrite_leaves_what_is_in_it(data: Path) -> None:
    """Offline it opens the log; a server that has it is asked instead. A restart finds the same."""
    result = log(data, "rewrite")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("rewritten in ")
    base, segment = log(data, "check", "--json").objects[0]["files"]
    assert [file["file"].partition("-")[0] for file in (base, segment)] == ["base", "segment"]
    frames = log(data, "dump").objects
    assert {frame["position"] for frame in frames if frame["file"] == base["file"]} == {base["position"]}
    assert all(
        frame["position"] == segment["position"] + frame["offset"]
        for frame in frames
        if frame["file"] == segment["file"]
    )
    with Server(data) as server:
        pending = redis(server.url, "XPENDING", "orders", "g")
        asked = weir(server.url, "log", "rewrite", "--data", str(data), "--json")
        assert asked.code == 0
        assert "is in use by process" in asked.err
        assert asked.objects[0]["bytes_after"] > 0
        assert weir(NOWHERE, "log", "rewrite", "--data", str(data)).code == 1
        elsewhere = {"WEIR_DATA": str(data / "nowhere")}
        remote = weir(server.url, "log", "rewrite", also=elsewhere)
        assert (remote.code, remote.err) == (
            0,
            f"weir: there is no {data / 'nowhere'}: asking {server.url}\n",
        )
        assert weir(NOWHERE, "log", "rewrite", also=elsewhere).code == 1
        server.restart()
        assert redis(server.url, "XPENDING", "orders", "g") == pending
        assert redis(server.url, "XLEN", "orders") == 5
    assert log(data / "nowhere", "rewrite").code == 3
