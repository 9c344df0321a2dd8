"""Rows in one pass: the compiled reader agrees with the one in Python, keeps to its memory, may miss."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.limits import EntryLimits
from engine import Engine, SystemClock, entries, ids, rows
from engine.commands.types import XAdd, XRange
from engine.replies import Entries
from engine.rows import Form
from tests.app.random_bodies import RandomBodies, compare
from tests.engine.asking import reply_to
from tests.waiting import completed

ROOT: Final = Path(__file__).parents[2]
LIMITS: Final = EntryLimits(entries_max=1_000, entry_bytes_max=1_000, fields_max=10, depth_max=8)
# Reads random bodies with a compiled reader in this folder, and uses all that it gives.
_USE: Final = """
import sys
sys.path[:0] = sys.argv[1:3]
import _rows
from tests.app.random_bodies import RandomBodies
bodies, taken = RandomBodies(7), 0
for _ in range(int(sys.argv[3])):
    body, form = bodies.draw()
    found = _rows.read(body, form, 20, 6, 300)
    if found is None:
        continue
    taken += 1
    stored = found.encode(1 << 40, (1 << 64) - 21)
    assert stored.join(0, len(stored)) == b",".join(stored[:])
    assert [stored.join(at, at + 1) for at in range(len(stored))] == stored[:] == list(stored)
    assert (found.size, stored[-1]) == (sum(map(len, found)), stored[:][-1])
print(taken)
"""

needs_compiled: Final = pytest.mark.skipif(rows.compiled is None, reason="nothing was compiled here")


@pytest.fixture(params=["c", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One way after the other."""
    if request.param == "python":
        monkeypatch.setattr(rows, "compiled", None)
    elif rows.compiled is None:
        pytest.skip("nothing was compiled here")
    assert rows.way() == request.param
    return str(request.param)


def read(body: bytes, form: Form = Form.LINES) -> list[bytes] | None:
    """What the compiled reader makes of a body."""
    found = rows.read(body, form, entries_max=3, fields_max=2, entry_bytes_max=40)
    return None if found is None else list(found)


@needs_compiled
@given(st.integers(0, 1 << 32))
def test_random_bodies_are_read_alike(seed: int) -> None:
    """The same entries, or the same refusal in the same words; a million of them in `make soak`."""
    compare(RandomBodies(seed), 20)


@needs_compiled
def test_what_it_takes_and_what_it_leaves() -> None:
    """A body at each limit, and one beyond; what has an ID, twice a name or a nested value is left."""
    one = b',"fields":{"a":"1"}}'
    assert read(b'{"a":1}\n{"fields":{"a":"1"}}\r\n\n {"a" : "1" }') == [one] * 3
    assert read(b'[{"a":1},{"fields":{"a":"1"}}]', Form.LIST) == [one] * 2
    assert read(b' {"entries": [{"fields":{"a":"1"}}]}\n', Form.BATCH) == [one]
    assert read(b'{"fields":{"a":"1"}}', Form.ONE) == [one]
    assert read(b'{"a":"\\u00e9\\/\\u0001\\n"}') == [',"fields":{"a":"é/\\u0001\\n"}}'.encode()]
    left = [b"", b"\n", b"{}", b'{"a":1}{"a":2}', b'{"a":1,"a":2}', b'{"a":{"b":1}}', b'{"a":null}', b"[]"]
    left += [b'{"fields":{"a":1},"id":"5-1"}', b'{"a":1e3}', b'{"a":01}', b'{"a":"\\ud800"}', b'{"a":"\xff"}']
    assert [read(body) for body in left] == [None] * len(left)
    assert read(b'{"a":1}', Form.ONE) is None, "an entry by itself is an envelope"
    at_the_limits = (b'{"a":1}\n' * 3, b'{"a":1,"b":2}', b'{"a":"%b"}' % (b"x" * 21))
    beyond = (b'{"a":1}\n' * 4, b'{"a":1,"b":2,"c":3}', b'{"a":"%b"}' % (b"x" * 22))
    assert [read(body) is None for body in (*at_the_limits, *beyond)] == [False] * 3 + [True] * 3


@needs_compiled
def test_the_shortest_lines_fit_their_bound() -> None:
    """Each of their bytes becomes almost three; of larger bodies little more is taken than they have."""
    body = b'{"":1}\n' * 1_000
    found = rows.read(body, Form.LINES, entries_max=1_000, fields_max=1, entry_bytes_max=100)
    assert found is not None
    assert rows.size(found) == 19_000 <= len(body) + 13 * body.count(b":") + 64


def test_ids_and_texts_are_the_same_in_both_ways(way: str) -> None:
    """Up to the last ID that there is, in nodes and in frames."""
    body = b"".join(b'{"place":"%d"}\n' % place for place in range(300))
    found = rows.read(body, Form.LINES, entries_max=300, fields_max=1, entry_bytes_max=100)
    assert (found is None) == (way == "python")
    bodies = found or [entries.body([("place", str(place))]) for place in range(300)]
    for first in (ids.make(0, 0), ids.make(5, 1_900), ids.ID_MAX - 299):
        texts = rows.stored(first, bodies)
        expected = [entries.encode(first + place, one) for place, one in enumerate(bodies)]
        assert list(texts) == expected
        assert texts[7] == expected[7]
        assert texts[3:9:2] == expected[3:9:2]
        assert rows.join(texts, 100, 200) == b",".join(expected[100:200])
        assert rows.size(texts) == sum(map(len, expected))


async def test_a_published_batch_is_read_back(way: str) -> None:
    """Over several nodes, an open one at both ends."""
    async with Engine.open(None, clock=SystemClock()) as engine:
        for count in (30, 1_000, 70):
            body = b"".join(b'{"place":%d}\n' % place for place in range(count))
            found = rows.read(body, Form.LINES, entries_max=1_000, fields_max=1, entry_bytes_max=100)
            bodies = found or [entries.body([("place", str(place))]) for place in range(count)]
            await reply_to(engine, XAdd(stream="s", bodies=bodies))
        reply = await reply_to(engine, XRange(stream="s", start=0, end=ids.ID_MAX))
        assert isinstance(reply, Entries)
        texts = entries.texts(b",".join(reply.parts))
        places = [int(value) for text in texts for _, value in entries.pairs_of(text)]
        assert places == [*range(30), *range(1_000), *range(70)], way
        engine.check()


@needs_compiled
def test_nothing_is_read_or_written_beyond_its_memory(tmp_path: Path) -> None:
    """Compiled with checks of addresses and of undefined behaviour, over random and damaged bodies."""
    source = tmp_path / "_rows.c"
    source.write_bytes((ROOT / "engine" / "_rows.c").read_bytes())
    checks = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1")
    build = [
        sys.executable,
        str(ROOT / ".ci" / "build_rows.py"),
        str(source),
        str(tmp_path / "_rows.abi3.so"),
    ]
    subprocess.run([*build, *checks], check=True)
    # Loaded before Python, whose own memory is not checked.
    find = ["cc", "-print-file-name=libasan.so"]
    checker = subprocess.run(find, capture_output=True, text=True, check=True).stdout.strip()
    done = completed(
        [sys.executable, "-c", _USE, str(tmp_path), str(ROOT), "4000"],
        env={
            **os.environ,
            "LD_PRELOAD": checker,
            "ASAN_OPTIONS": "detect_leaks=0",
            "PYTHONMALLOC": "malloc",
        },
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1_000


def test_the_gateway_starts_without_the_compiled_reader() -> None:
    """As where there was no compiler."""
    program = "import sys; sys.modules['engine._rows'] = None; from engine import rows; print(rows.way())"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "python\n"
