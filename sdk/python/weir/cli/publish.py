"""`weir publish`: a file, standard input or fields as words into a stream, nothing twice and nothing lost.

Knows: which key a batch is sent under, and what to say about the outcome.
Must never know: HTTP, how the input is written.

The key of a batch is the run's name and the batch's number. The run is named by --resume-key, else by the
content of the file. So the same command sends the same batches under the same keys, and the gateway stores
each of them once, for as long as it remembers: a day, and 10 000 batches of a stream. Another body under a
known key is refused, so a changed input, --batch or --format is an error instead of being mixed in.
"""

import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from weir.cli import options, output
from weir.cli.failure import Failure
from weir.errors import WeirError

if TYPE_CHECKING:
    from weir import Client
    from weir.cli.sources import InputBatch

_STANDARD_INPUT: Final = Path("-")
_BATCH_ENTRIES_DEFAULT: Final = 1_000
_BATCH_ENTRIES_MAX: Final = 1_000_000
# What the gateway remembers of a stream, the oldest forgotten first.
REMEMBERED_KEYS_MAX: Final = 10_000
# Where in a batch the gateway found something wrong: the line of the body, the index of the entry.
_PLACE_IN_BATCH: Final = re.compile(r"(line \d+: )?(/\d+)?")
_FORMATS: Final = ("auto", "ndjson", "csv", "lines")


class PublishRun(NamedTuple):
    """`name` is what the keys are made of; `resumable` if the same command makes the same name again."""

    name: str
    resumable: bool
    bytes_total: int | None

    def key(self, position: int) -> str:
        """The batch's Idempotency-Key."""
        import hashlib

        return f"weir-publish-{hashlib.blake2b(self.name.encode(), digest_size=16).hexdigest()}-{position}"


class PublishTotals:
    """The outcome of the batches so far."""

    def __init__(self) -> None:
        self.stored = 0
        self.repeated = 0
        self.batches = 0
        self.last_id: str | None = None

    def add(self, count: int, last_id: str, *, duplicate: bool) -> None:
        """Count an answer."""
        self.batches += 1
        self.last_id = last_id
        if duplicate:
            self.repeated += count
        else:
            self.stored += count

    def __str__(self) -> str:
        line = f"stored {output.counted(self.stored, 'entry', 'entries')}"
        if self.repeated:
            line += f", {self.repeated:,} were stored before"
        return line


def _check_format(text: str) -> str:
    if text not in _FORMATS:
        raise typer.BadParameter(f"{text!r} is none of {', '.join(_FORMATS)}")
    return text


_What = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE | NAME=VALUE…]",
        help="a file, or the fields of one entry; without, or -: standard input",
        show_default=False,
    ),
]
_Written = Annotated[
    str, typer.Option("--format", callback=_check_format, metavar="FORMAT", help=" | ".join(_FORMATS))
]
_Batch = Annotated[int, typer.Option(min=1, max=_BATCH_ENTRIES_MAX, help="entries that are stored together")]
_ResumeKey = Annotated[
    str | None, typer.Option(help="names this run; the same input under the same name is stored once")
]


def publish(  # noqa: PLR0913 - a command's options are its parameters
    stream: options.Stream,
    what: _What = None,
    *,
    written: _Written = "auto",
    batch: _Batch = _BATCH_ENTRIES_DEFAULT,
    resume_key: _ResumeKey = None,
    as_json: options.Json = False,
    patience_ms: options.Patience = 60_000,
    url: options.Url = options.DEFAULT_URL,
    token_file: options.TokenFile = None,
    ca: options.Ca = None,
) -> None:
    """Publish NDJSON, CSV with a header, plain lines (as the field `data`), or one entry: NAME=VALUE ….

    A file, also as `< FILE`, is stored once: when the command was interrupted, run it again and it goes on.
    What comes through a pipe is sent as it comes; with --resume-key it is stored once too. A name not used
    before publishes the same file again.
    """
    if resume_key == "":
        raise typer.BadParameter("it is not empty", param_hint="--resume-key")
    from weir.cli.gateway import connect as open_client

    connect = partial(open_client, url, token_file, ca, patience_ms=patience_ms)
    fields = _fields(what or [])
    outcome = PublishTotals()
    if not fields:
        file = Path(what[0]) if what else _STANDARD_INPUT
        _publish_file(connect, stream, file, written, batch, resume_key, outcome)
    elif written != "auto":
        raise typer.BadParameter("it goes with a file or standard input", param_hint="--format")
    else:
        run = PublishRun(resume_key or _new_name(), resume_key is not None, None)
        with connect() as client:
            _send(client, stream, run, _entry(fields), outcome)
    output.lines([_summary(outcome, as_json=as_json)])


def _publish_file(
    connect: "Callable[..., AbstractContextManager[Client]]",
    stream: str,
    file: Path,
    written: str,
    batch: int,
    resume_key: str | None,
    outcome: PublishTotals,
) -> None:
    from weir.cli.sources import Format, Lines, batches, rows

    with _opened(file) as descriptor:
        run = _run(descriptor, resume_key)
        lines = Lines(descriptor, live=not run.resumable)
        found = batches(lines, rows(lines, Format(written), file.name), batch)
        with (
            _explained(run, outcome),
            _progress(run.bytes_total) as (advance, say_line),
            connect(say=say_line) as client,
        ):
            for one in found:
                _send(client, stream, run, one, outcome)
                advance(one.bytes_read, outcome.stored + outcome.repeated)
                if one.position == REMEMBERED_KEYS_MAX:
                    say_line(
                        f"more than {REMEMBERED_KEYS_MAX:,} batches: running it again would store some twice"
                    )


def _fields(words: list[str]) -> list[tuple[str, str]]:
    """The words as fields of one entry, in order; none where they are the name of a file.

    One word that is a file's name is read as that file, even if it looks like a field.
    """
    if not words or (len(words) == 1 and ("=" not in words[0] or Path(words[0]).exists())):
        return []
    fields = [word.partition("=") for word in words]
    for word, (name, equals, _) in zip(words, fields, strict=True):
        if not equals or not name:
            raise typer.BadParameter(f"{word!r} is not NAME=VALUE, as the fields of one entry are")
    return [(name, value) for name, _, value in fields]


def _entry(fields: list[tuple[str, str]]) -> "InputBatch":
    """A batch of one entry."""
    from weir.cli.sources import InputBatch

    try:
        return InputBatch(0, json.dumps({"fields": fields}, ensure_ascii=False).encode() + b"\n", [], 0)
    except UnicodeEncodeError:
        raise typer.BadParameter("the fields are not UTF-8") from None


def _new_name() -> str:
    """The name of a run that is not to be repeated by another command."""
    import secrets

    return secrets.token_hex(16)


def _send(
    client: "Client", stream: str, run: PublishRun, batch: "InputBatch", outcome: PublishTotals
) -> None:
    """Store a batch; a refusal names the line of the input, where it names an entry."""
    from weir import Published
    from weir._http import parse_response
    from weir.errors import ApiError
    from weir.paths import stream_path

    headers = {
        "content-type": "application/x-ndjson",
        "idempotency-key": run.key(batch.position),
        "prefer": "return=minimal",
    }
    path = f"{stream_path(stream)}/entries"
    try:
        sent = client.send("POST", path, body=batch.body, headers=headers, repeatable=True)
        answer = parse_response(sent, Published.parse)
    except ApiError as refused:
        index = refused.problem.get("index")
        if refused.code == "idempotency_mismatch":
            sentence = "under this name other input was published before, or with another --batch or --format"
            raise Failure(sentence, code=refused.code) from None
        if not isinstance(index, int) or index >= len(batch.numbers):
            raise
        # The gateway counts the lines of the batch, people those of their file.
        sentence = _PLACE_IN_BATCH.sub("", refused.detail, count=1).lstrip(":/ ")
        raise Failure(f"line {batch.numbers[index]}: {sentence}", code=refused.code) from None
    outcome.add(answer.count, answer.last_id, duplicate=answer.duplicate)


@contextmanager
def _opened(file: Path) -> Iterator[int]:
    """The input's file descriptor."""
    if file == _STANDARD_INPUT:
        yield sys.stdin.fileno()
        return
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="FILE") from None
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise typer.BadParameter(f"{file} is a directory", param_hint="FILE")
        yield descriptor
    finally:
        os.close(descriptor)


def _run(descriptor: int, resume_key: str | None) -> PublishRun:
    import hashlib

    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        return PublishRun(resume_key or _new_name(), resume_key is not None, None)
    begin = os.lseek(descriptor, 0, os.SEEK_CUR)
    total = max(0, status.st_size - begin)
    if resume_key is not None:
        return PublishRun(resume_key, resumable=True, bytes_total=total)
    with open(descriptor, "rb", closefd=False) as content:
        digest = hashlib.file_digest(content, "blake2b").hexdigest()[:32]
    os.lseek(descriptor, begin, os.SEEK_SET)
    return PublishRun(digest, resumable=True, bytes_total=total)


@contextmanager
def _explained(run: PublishRun, outcome: PublishTotals) -> Iterator[None]:
    """Says what is stored when it cannot go on, and how to."""
    try:
        yield
    except (WeirError, KeyboardInterrupt) as error:
        is_interrupted = isinstance(error, KeyboardInterrupt)
        if run.resumable and (is_interrupted or outcome.batches):
            name = output.word(run.name)
            output.say(f"{outcome}; run it again to go on, with --resume-key {name} if the input is mended")
        elif is_interrupted or outcome.batches:
            output.say(str(outcome))
        if is_interrupted:
            raise typer.Exit(1) from None
        raise


@contextmanager
def _progress(
    bytes_total: int | None,
) -> Iterator[tuple[Callable[[int, int], None], Callable[[str], None]]]:
    """How far it is, on a terminal: `advance(bytes_read, entries)`; and how to say a line meanwhile."""
    if not sys.stderr.isatty():
        yield lambda _bytes, _entries: None, output.say
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    columns = (
        BarColumn(),
        DownloadColumn(binary_units=True),
        TextColumn("{task.fields[entries]:,} entries"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=bytes_total, entries=0)

        def advance(bytes_read: int, count: int) -> None:
            progress.update(task, completed=bytes_read, entries=count)

        def say_line(line: str) -> None:
            progress.console.print(Text(f"weir: {output.plain(line)}"))

        yield advance, say_line


def _summary(outcome: PublishTotals, *, as_json: bool) -> str:
    if as_json:
        return output.json_line(vars(outcome))
    return f"{outcome}; the last ID is {outcome.last_id}" if outcome.last_id else str(outcome)
