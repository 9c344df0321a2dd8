"""What reading JSON costs with msgspec, orjson and pydantic, for the bodies where the choice matters.

Every reader does the whole job: it refuses values of a wrong type and unknown members, and returns what the
caller needs. All run in this process, without a gateway. A time is CPU time of the process: the median of
`ROUNDS` rounds, in which the readers take turns; a round is the mean of as many calls as take about 20 ms.
`x` is the time divided by msgspec's.

    python -m bench.decoding [--json FILE]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import orjson
import pydantic

ROUNDS: Final = 21
ROUND_S: Final = 0.02
ROWS: Final = 1_000

Reader = Callable[[bytes], object]


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    fields: dict[str, str]
    id: str = ""


class _Entries(msgspec.Struct, forbid_unknown_fields=True):
    entries: list[_Entry]


class _Ack(msgspec.Struct, forbid_unknown_fields=True, tag_field="op", tag="ack"):
    sub: str
    ids: list[str]
    ref: str | int | None = None


class _Credit(msgspec.Struct, forbid_unknown_fields=True, tag_field="op", tag="credit"):
    sub: str
    credit: int
    ref: str | int | None = None


class _Closed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)


class _EntryModel(_Closed):
    fields: dict[str, str]
    id: str = ""


class _EntriesModel(_Closed):
    entries: list[_EntryModel]


class _AckModel(_Closed):
    op: Literal["ack"]
    sub: str
    ids: list[str]
    ref: str | int | None = None


class _CreditModel(_Closed):
    op: Literal["credit"]
    sub: str
    credit: int
    ref: str | int | None = None


_encode: Final = msgspec.json.Encoder().encode
_entry: Final = msgspec.json.Decoder(_Entry).decode
_entries: Final = msgspec.json.Decoder(_Entries).decode
_rows: Final = msgspec.json.Decoder(dict[str, str]).decode_lines
_frame: Final = msgspec.json.Decoder(_Ack | _Credit).decode
_row_model: Final = pydantic.TypeAdapter(dict[str, str], config=pydantic.ConfigDict(strict=True))
_frame_model: Final[pydantic.TypeAdapter[_AckModel | _CreditModel]] = pydantic.TypeAdapter(
    Annotated[_AckModel | _CreditModel, pydantic.Field(discriminator="op")]
)


def _check_texts(fields: object) -> object:
    """Refuse what is not an object of texts, as the typed readers do."""
    if type(fields) is not dict or not all(type(value) is str for value in fields.values()):
        raise TypeError("fields are an object of texts")
    return fields


def _check_entry(entry: dict[str, object]) -> object:
    if not entry.keys() <= {"fields", "id"} or type(entry.get("id", "")) is not str:
        raise TypeError("an entry has `fields` and perhaps `id`")
    return _check_texts(entry["fields"])


def _check_frame(frame: dict[str, object]) -> object:
    ids = frame.get("ids")
    known = frame.keys() <= {"op", "sub", "ids", "ref"} and frame.get("op") == "ack"
    if not known or type(frame.get("sub")) is not str or type(ids) is not list:
        raise TypeError("not an ack")
    if not all(type(one) is str for one in ids):
        raise TypeError("not an ack")
    return frame


def readers() -> dict[str, tuple[bytes, dict[str, Reader]]]:
    """Each job: a body, and three ways to read it. Fields of entries are written again, for the engine."""
    entry = b'{"fields":{"sensor-id":"1234","temperature":"19.8"}}'
    row = b'{"sensor-id":"1234","temperature":"19.8"}'
    ids = ",".join(f'"1526919030474-{n}"' for n in range(10)).encode()
    dumps = orjson.dumps
    return {
        "one entry": (entry, {
            "msgspec": lambda body: _encode(_entry(body).fields),
            "orjson": lambda body: dumps(_check_entry(orjson.loads(body))),
            "pydantic": lambda body: dumps(_EntryModel.model_validate_json(body).fields),
        }),
        f"{ROWS} entries": (b'{"entries":[%b]}' % b",".join([entry] * ROWS), {
            "msgspec": lambda body: [_encode(one.fields) for one in _entries(body).entries],
            "orjson": lambda body: [dumps(_check_entry(one)) for one in orjson.loads(body)["entries"]],
            "pydantic": lambda body: [
                dumps(one.fields) for one in _EntriesModel.model_validate_json(body).entries
            ],
        }),
        f"{ROWS} lines of NDJSON": (b"\n".join([row] * ROWS), {
            "msgspec": lambda body: [_encode(one) for one in _rows(body)],
            "orjson": lambda body: [dumps(_check_texts(orjson.loads(one))) for one in body.split(b"\n")],
            "pydantic": lambda body: [
                dumps(_row_model.validate_json(one)) for one in body.split(b"\n")
            ],
        }),
        "an ack frame of 10 IDs": (b'{"op":"ack","sub":"work","ids":[%b],"ref":7}' % ids, {
            "msgspec": _frame,
            "orjson": lambda body: _check_frame(orjson.loads(body)),
            "pydantic": _frame_model.validate_json,
        }),
    }  # fmt: skip


def measure(body: bytes, ways: dict[str, Reader]) -> dict[str, float]:
    """Microseconds a call of each way."""
    calls = {}
    for way, read in ways.items():
        read(body)
        start = time.process_time()
        for _ in range(10):
            read(body)
        calls[way] = max(1, int(10 * ROUND_S / (time.process_time() - start)))
    rounds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, read in ways.items():
            start = time.process_time()
            for _ in range(calls[way]):
                read(body)
            rounds[way].append((time.process_time() - start) / calls[way] * 1e6)
    return {way: statistics.median(times) for way, times in rounds.items()}


def main() -> None:
    """Measure every job and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = {job: measure(body, ways) for job, (body, ways) in readers().items()}
    print(f"{'us a body':24}{'msgspec':>12}{'orjson':>12}{'x':>6}{'pydantic':>12}{'x':>6}")
    for job, us in found.items():
        base = us["msgspec"]
        others = "".join(f"{us[way]:12.2f}{us[way] / base:6.2f}" for way in ("orjson", "pydantic"))
        print(f"{job:24}{base:12.2f}{others}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
