"""The sink's options: what is given is followed, or refused with what to write instead."""

import pickle

import pytest

from pyspark_weir.errors import OptionError
from pyspark_weir.sink.options import SinkOptions

URL = "http://127.0.0.1:8080"


def test_a_gateway_is_enough() -> None:
    """The defaults are those of the table."""
    chosen = SinkOptions.of({"gateway.urls": URL})
    assert (chosen.access.url, chosen.key_mode, chosen.chunk_rows) == (URL, "position", 5_000)
    assert (chosen.in_flight, chosen.rows.null_fields, chosen.rows.explicit_ids) == (1, "skip", True)
    assert not (chosen.ordered)
    assert not (chosen.allow_truncate)
    assert not (chosen.job_id)
    assert not (chosen.entries_per_s)


def test_names_are_compared_without_case_and_travel_to_workers() -> None:
    """Spark gives them in lower case at times."""
    chosen = SinkOptions.of({"URL": URL, "keymode": "CONTENT", "CHUNKROWS": "7", "checkpointLocation": "/x"})
    assert (chosen.key_mode, chosen.chunk_rows) == ("content", 7)
    assert pickle.loads(pickle.dumps(chosen)) == chosen


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "gateway.urls is missing"),
        ({"url": f"a={URL},b={URL}"}, "a sink writes to one"),
        ({"url": URL, "keyMode": "exact"}, "keyMode=exact"),
        ({"url": URL, "chunkRows": "10001"}, "chunkRows=10001: it is a whole number from 1 to 10000"),
        ({"url": URL, "chunkRow": "1"}, "chunkRows"),
        ({"url": URL, "startingOffsets": "earliest"}, "reading"),
        ({"url": URL, "token": "secret"}, "tokenFile"),
        ({"url": URL, "ordered": "true", "maxInFlight": "2"}, "overtake"),
    ],
)
def test_what_cannot_be_followed_is_refused(options: dict[str, str], sentence: str) -> None:
    """With the option's name, and what would do."""
    with pytest.raises(OptionError, match=sentence) as refused:
        SinkOptions.of(options)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(("key_mode", "rows"), [("position", 5_000), ("none", 5_000), ("content", 300)])
def test_a_request_has_no_more_rows_than_the_gateway_takes(key_mode: str, rows: int) -> None:
    """Content keys go through transactions, which are one turn each."""
    options = {"url": URL, "keyMode": key_mode}
    assert SinkOptions.of(options).chunk_rows == rows
    assert SinkOptions.of({**options, "chunkRows": "299"}).chunk_rows == 299
    assert SinkOptions.of({**options, "chunkRows": "5000"}).chunk_rows == rows
