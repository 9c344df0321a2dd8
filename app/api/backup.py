"""Maintenance of the whole gateway: rewriting its log, backups."""

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from app.auth import Action
from app.http.models import Count, Milliseconds, RequestModel, ResponseModel, wrong
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router
from app.http.responses import Response
from app.operating import LastBackup
from engine import Rewrites

router: Final = Router("gateway")

_REWRITE: Final = "/v1/admin/rewrite"
_BACKUP: Final = "/v1/admin/backup"
_WHERE: Final = {"Location": "where its state is"}

# Plain names of directories: nothing that leads elsewhere, hides, or means something to a shell.
_NAME: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_NAME_HINT: Final = "1 to 128 letters, digits, '.', '_' and '-', the first a letter or a digit"


def _check_name(name: str) -> str:
    if not re.fullmatch(_NAME, name):
        raise wrong(_NAME_HINT)
    return name


class NewBackup(RequestModel):
    """A backup to begin, in a new directory of this name below the setting `backup_dir`."""

    name: Annotated[str, AfterValidator(_check_name), Field(json_schema_extra={"pattern": f"^{_NAME}$"})]


class BackupState(ResponseModel):
    """The last backup since the gateway started, or the one under way. Counts are null until it is done."""

    state: Literal["none", "running", "done", "failed"]
    name: str | None
    started_ms: Milliseconds | None
    ended_ms: Milliseconds | None
    files: Count | None
    frames: Count | None
    bytes: Count | None
    error: str | None

    @classmethod
    def of(cls, last: LastBackup) -> "BackupState":
        """As the gateway has it."""
        return cls(**last._asdict())


class RewriteState(ResponseModel):
    """The last rewrite since the gateway started, or the one under way. Numbers are null until it is done."""

    state: Literal["none", "running", "done", "failed"]
    bytes_before: Count | None
    bytes_after: Count | None
    duration_ms: Milliseconds | None
    error: str | None

    @classmethod
    def of(cls, latest: Rewrites) -> "RewriteState":
        """As the engine has it."""
        error = None
        state: Literal["none", "running", "done", "failed"] = "none"
        numbers: tuple[int | None, int | None, int | None] = (None, None, None)
        if latest.running:
            state = "running"
        elif latest.failure is not None:
            state, error = "failed", latest.failure
        elif latest.last is not None:
            state, numbers = "done", latest.last
        before, after, duration_ms = numbers
        return cls(state=state, bytes_before=before, bytes_after=after, duration_ms=duration_ms, error=error)


@router.post(
    _REWRITE, Action.ADMIN, status=202, model=RewriteState, headers=_WHERE, bodiless=True, central=True
)
def start_rewrite(request: RequestParameter) -> Response:
    """Begin to make the log as short as what is in memory, and files of cold entries free of what was
    deleted: once it is done, no byte of that is in any file. A rewrite under way is followed by another.
    """
    engine = request.gateway.engine
    engine.begin_rewrite()
    return request.respond_accepted(RewriteState.of(engine.figures().rewrites), _REWRITE)


@router.get(_REWRITE, Action.ADMIN, model=RewriteState, central=True)
def get_rewrite(request: RequestParameter) -> RewriteState:
    """Show the last rewrite, or the one under way."""
    return RewriteState.of(request.gateway.engine.figures().rewrites)


@router.post(
    _BACKUP,
    Action.ADMIN,
    status=202,
    model=BackupState,
    headers=_WHERE,
    refusals=("busy", "not_configured"),
    central=True,
)
async def start_backup(request: RequestParameter, given: NewBackup) -> Response:
    """Begin a backup; it holds everything that was acknowledged before."""
    return request.respond_accepted(
        BackupState.of(await request.gateway.operator.backups.start(given.name)), _BACKUP
    )


@router.get(_BACKUP, Action.ADMIN, model=BackupState, central=True)
def get_backup(request: RequestParameter) -> BackupState:
    """Show the last backup, or the one under way."""
    return BackupState.of(request.gateway.operator.backups.last)
