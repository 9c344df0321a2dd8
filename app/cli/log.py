"""`weir log`: the files of the log, looked at and put right on the machine where they are.

Knows: what people and programs are shown of files, frames and verdicts.
Must never know: how a file is read or mended.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.cli.directory import REFUSED, Data, Place, chosen, ending, opened
from weir.cli import options, output
from weir.cli.failure import Failure

if TYPE_CHECKING:
    from engine.codec import Damage
    from engine.log.inspection import FrameRun, Inspection
    from engine.log.run_files import RunsFound
    from engine.storage import Storage

_ASK_AGAIN_S: Final = 0.2
_REWRITE: Final = "/v1/admin/rewrite"
_COLUMNS: Final = ("file", "position", "frames", "bytes", "state")

commands = typer.Typer(
    no_args_is_help=True,
    help="Look at the files of a log, and mend them. Exit codes: 0 fine, 2 usage, 3 refused, 4 in use.",
)


@commands.command()
def check(place: Place = None, *, data: Data = None, as_json: options.Json = False) -> None:
    """Verify every file: 0 all is sound, 3 a start would refuse, or could not read all cold entries.

    Changes nothing, and may run beside a server. A last write that is not whole is no damage, nor is one in
    what nothing refers to any more.
    """
    from engine.backup import inspect
    from engine.log import LogRefusedError
    from engine.log.run_files import refusal_of

    with opened(chosen(data, place)) as storage:
        inspection = inspect(storage)
        if as_json:
            output.lines([output.json_line(_verdict(inspection))])
        else:
            rows = [*_files(inspection), *({"file": name, "state": "missing"} for name in inspection.missing)]
            if rows:
                output.rows([_shown(row) for row in rows], _COLUMNS, as_json=False)
            output.lines(_sentences(inspection))
        if inspection.refusal is not None:
            raise inspection.refusal
        for found in inspection.stored:
            if found.damage is not None:
                raise refusal_of(found)
        for name in inspection.missing:
            raise LogRefusedError(name, "is missing, but the manifest names it")


def _verdict(inspection: "Inspection") -> dict[str, Any]:
    """The whole inspection for programs."""
    recovery, refusal = inspection.recovery, inspection.refusal
    verdict: dict[str, Any] = {"state": _state(inspection), "files": _files(inspection)}
    verdict |= {"missing": inspection.missing, "beside": inspection.beside}
    if recovery is not None:
        names = ("frames", "bytes", "torn_bytes", "torn_file", "clean_stop", "reservation_ms", "sequence")
        verdict |= {name: getattr(recovery, name) for name in names}
    if refusal is not None:
        verdict["refusal"] = {"file": refusal.file, "offset": refusal.offset, "reason": refusal.reason}
    return verdict


def _state(inspection: "Inspection") -> str:
    if inspection.recovery is None:
        return "refused"
    return "torn" if inspection.recovery.torn_bytes else "sound"


def _files(inspection: "Inspection") -> list[dict[str, Any]]:
    """What a file was sealed as is only known by the manifest."""
    files = [_file(run, run.fault if inspection.has_manifest else run.damage) for run in inspection.runs]
    return [*files, *map(_runs, inspection.stored)]


def _runs(found: "RunsFound") -> dict[str, Any]:
    """A file of runs: they have no position, and count where frames do."""
    fault = found.damage
    return {
        "file": found.name,
        "position": None,
        "frames": found.runs,
        "bytes": found.length,
        "size": found.size,
        "is_sealed": True,
        "fault": None if fault is None else {"offset": fault.offset, "reason": fault.reason},
    }


def _file(run: "FrameRun", fault: "Damage | None") -> dict[str, Any]:
    fields = {
        "file": run.file.name,
        "position": run.file.position,
        "frames": run.frames,
        "bytes": run.length,
        "size": run.size,
        "is_sealed": run.file.seal is not None,
        "fault": None,
    }
    if fault is not None:
        fields["fault"] = {"offset": fault.offset, "reason": fault.reason}
    return fields


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    if "state" in row:
        return row
    fault = row["fault"]
    if fault is not None:
        return row | {"state": f"offset {fault['offset']}: {fault['reason']}"}
    if not row["frames"]:
        return row | {"state": "empty"}
    if row["position"] is None:
        return row | {"position": "", "state": "runs"}
    return row | {"state": "sealed" if row["is_sealed"] else "open"}


def _sentences(inspection: "Inspection") -> Iterator[str]:
    if inspection.beside:
        yield f"beside the log, not part of it: {', '.join(inspection.beside)}"
    recovery = inspection.recovery
    if recovery is None:
        return
    frames = output.counted(recovery.frames, "frame", "frames")
    is_readable = all(found.damage is None for found in inspection.stored)
    said = "sound" if is_readable else "a start succeeds, but cannot read all cold entries"
    yield f"{said}: {frames} to load in {output.counted(recovery.bytes, 'byte', 'bytes')}"
    if recovery.torn_bytes:
        torn = output.counted(recovery.torn_bytes, "byte", "bytes")
        yield f"but for the last {torn}: a write under way, or torn by a crash"
        yield f"a start cuts them and keeps them in {recovery.torn_file}"
    elif not recovery.clean_stop:
        yield "not stopped cleanly: it is in use, or ended by a crash"


@commands.command()
def dump(place: Place = None, *, data: Data = None) -> None:
    """Print every frame of the log as a line of JSON: where it is, and the records in it.

    Changes nothing, and may run beside a server. A damage is a line too, and ends its file.
    """
    with opened(chosen(data, place)) as storage:
        output.lines(_dumped(storage))


def _dumped(storage: "Storage") -> Iterator[str]:
    """The lines; then the refusal of a start, if there is any damage that is one."""
    from app.cli.records import frame_of
    from engine.codec import Damage
    from engine.log.inspection import check_version, frames_of, placed, rehearse
    from engine.log.view import LogView
    from engine.records.payload import find_newer

    with LogView.of(storage) as view:
        has_manifest, files = placed(view)
        is_whole = has_manifest
        for file in files:
            if file.name not in view.names():
                is_whole = False
                continue
            for frame in frames_of(view, file):
                if isinstance(frame, Damage):
                    is_whole = False
                    fields = {"file": file.name, "offset": frame.offset, "damage": frame.reason}
                else:
                    fields = frame_of(file.name, file.position, frame)
                yield output.json_line(fields)
        check_version(view, find_newer)
        if not is_whole:
            rehearse(view)


@commands.command()
def repair(
    place: Place = None,
    *,
    data: Data = None,
    is_agreed: Annotated[bool, typer.Option("--yes", help="do it without asking")] = False,
) -> None:
    """Say what can be saved of a log that a start refuses, ask, and save it.

    Nothing is deleted: what is cut or given up stays beside the log, under another name. It may be stopped at
    any moment and run again. Exit codes: 0 a start succeeds now, 1 not agreed, 3 it cannot be saved.
    """
    from engine import SystemClock
    from engine.backup import plan
    from engine.backup import repair as carry_out
    from engine.log.repair import IrreparableError

    path = chosen(data, place)
    with opened(path) as storage:
        # Looking takes no lock, but of a log in use the last write is no torn tail.
        storage.lock()
        storage.unlock()
        try:
            step = plan(storage)
            if step is None:
                output.lines([f"{path} is sound: there is nothing to repair", *_not_looked_at(storage)])
                return
            while step is not None:
                output.lines(step.sentences())
                if not is_agreed and not typer.confirm("go on?"):
                    raise Failure("nothing more was changed")
                carry_out(storage, step, now_ms=SystemClock().wall_ms())
                step = plan(storage)
        except IrreparableError as verdict:
            raise Failure(str(verdict), exit_code=REFUSED) from None
    output.lines([f"{path} is sound now: a start succeeds"])


def _not_looked_at(storage: "Storage") -> Iterator[str]:
    from engine.log.manifest import run_number

    if any(run_number(name) is not None for name in storage.names()):
        yield "cold entries in files of their own were not looked at: `weir log check` does that"


@commands.command()
def rewrite(
    place: Place = None,
    *,
    data: Data = None,
    as_json: options.Json = False,
    url: options.Url = options.DEFAULT_URL,
    token_file: options.TokenFile = None,
    ca: options.Ca = None,
) -> None:
    """Make the log as short as what is in it; of deleted entries no byte is left.

    A server that has the log open is asked at --url to do so, and goes on meanwhile. So is the one at --url
    where no data directory is named or there.
    """
    from engine import StorageLockedError

    path = chosen(data, place)
    with ending(path):
        if data is None and place is None and not path.is_dir():
            output.say(f"there is no {path}: asking {url}")
            done = _rewrite_over_api(url, token_file, ca)
        else:
            try:
                done = _rewritten(path)
            except StorageLockedError as locked:
                output.say(f"{locked}: asking {url}")
                done = _rewrite_over_api(url, token_file, ca)
    if as_json:
        output.lines([output.json_line(done)])
        return
    before, after = (output.counted(done[f"bytes_{when}"], "byte", "bytes") for when in ("before", "after"))
    output.lines([f"rewritten in {done['duration_ms']} ms: {before} before, {after} now"])


def _rewritten(path: Path) -> dict[str, Any]:
    """Open the log, rewrite it, close it."""
    import asyncio

    from engine import Engine, RewriteFailedError, StorageRefusedError, SystemClock

    async def run() -> dict[str, Any]:
        engine = Engine.open(path, clock=SystemClock(), fsync="always")
        await engine.start()
        try:
            return (await engine.rewrite())._asdict()
        except RewriteFailedError as failed:
            raise Failure(str(failed)) from None
        finally:
            await engine.close()

    if not path.is_dir():
        raise StorageRefusedError(f"data directory {path}: No such file or directory")
    return asyncio.run(run())


def _rewrite_over_api(url: str, token_file: Path | None, ca: Path | None) -> dict[str, Any]:
    """Have the server rewrite its log, and wait."""
    from weir.cli.gateway import connect

    with connect(url, token_file, ca) as client:
        state = client.call("POST", _REWRITE, body={}, repeatable=True)
        while state["state"] == "running":
            time.sleep(_ASK_AGAIN_S)
            state = client.call("GET", _REWRITE)
    if state["state"] != "done":
        raise Failure(state["error"] or "the server was started anew meanwhile: nothing was rewritten")
    return {name: state[name] for name in ("bytes_before", "bytes_after", "duration_ms")}
