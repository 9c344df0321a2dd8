"""Health: whether the process is alive, whether it can serve, and its state in detail."""

from typing import Annotated, Final, Literal

from pydantic import Field

from app import VERSION
from app.api.backup import BackupState, RewriteState
from app.auth import Access, Action, Resource
from app.errors import RefusalError
from app.gateway import Gateway
from app.http.models import ABSENT, Count, Milliseconds, ResponseModel
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router
from app.http.requests import Request
from app.http.responses import Response
from app.operating import Phase
from engine import EngineProtocol, rows

router: Final = Router("gateway")

_PHASES: Final = tuple(phase.value for phase in Phase)
_FAILED: Final = ("storage_failed", "backend_unavailable")
_RETRY_AFTER: Final = (b"retry-after", b"1")


class LoadProgress(ResponseModel):
    """How far reading the log is: its frames are checked, then loaded."""

    step: Literal["checking", "loading"]
    done_bytes: int
    total_bytes: int


class Health(ResponseModel):
    """How the gateway is."""

    status: Annotated[
        str,
        Field(
            json_schema_extra={
                "enum": ["live", *_PHASES, "storage_failed", "backend_unavailable", "unavailable"]
            }
        ),
    ]
    progress: LoadProgress = ABSENT
    reason: Annotated[
        str, Field(description="why the log takes no writes, or the backend cannot be used now")
    ] = ABSENT
    failing: Annotated[
        list[str], Field(description="what an operator has to act on, as `weir_failing` of the metrics")
    ] = ABSENT


class Durability(ResponseModel):
    """When the log is synced, null where a server has it, and what an answer promises."""

    fsync: Literal["always", "everysec", "no"] | None
    answers: Annotated[
        str, Field(description="as `Weir-Durability`: `fsync`, `os`, or what `backend_durability` says")
    ]


class LogState(ResponseModel):
    """How the log is. `failure` says why it takes no writes until a restart, null while it does."""

    bytes: Count
    base_bytes: Annotated[Count, Field(description="how much of it a rewrite has left")]
    unsynced_bytes: Annotated[Count, Field(description="what a power cut would take")]
    answers_waiting: Annotated[Count, Field(description="for a write or a sync")]
    failure: str | None
    syncs: Annotated[
        Literal["kernel", "thread"],
        Field(description="what does its syncs: the kernel by itself, or a thread that waits for it"),
    ]
    stored_bytes: Annotated[Count, Field(description="what cold entries take on the disk, beside the log")]
    stored_damaged: Annotated[Count, Field(description="parts of streams that cannot be read back")]
    stored_reads_in_turns: Annotated[
        Count, Field(description="reads of cold entries for which all else waited, since the start")
    ]
    storing_failure: Annotated[
        str | None,
        Field(description="why cold entries could not be stored when that was last tried"),
    ]


class MemoryState(ResponseModel):
    """The gateway's memory: above `bytes_soft` cold entries leave it for files, null is never; at `bytes_max`
    it is full and takes no more data, null is no limit.
    """

    used_bytes: Annotated[Count, Field(description="what is compared with the limit")]
    data_bytes: Annotated[Count, Field(description="what streams and groups take, by estimate")]
    resident_bytes: Annotated[Count, Field(description="what the system counts for the process")]
    bytes_soft: Count | None
    bytes_max: Count | None
    full: bool


class Connections(ResponseModel):
    """Who is there. `following` counts reads that wait and connections that follow streams. `failed` counts
    WebSockets that a fault of the gateway has ended since it began: its log has a line for each.
    """

    open: Count
    following: Count
    waiting_reads: Count
    failed: Count


class GatewayStatus(ResponseModel):
    """How the gateway is."""

    status: Annotated[str, Field(json_schema_extra={"enum": ["ready", *_FAILED]})]
    version: str
    backend: Annotated[str, Field(description="what runs the commands: `embedded`, or a server's name")]
    missing: Annotated[list[str], Field(description="what clients cannot have of this backend")]
    rows: Annotated[
        Literal["c", "python"],
        Field(description="what reads the entries of a body: the compiled reader, or the one in Python"),
    ]
    uptime_ms: Milliseconds
    durability: Durability
    log: Annotated[LogState | None, Field(description="null where a server has it")]
    memory: MemoryState
    streams: Count
    streams_closed: Annotated[
        Count | None, Field(description="that have ended; null where a server has them")
    ]
    streams_hidden: Annotated[
        Count | None,
        Field(description="names of removed streams that have forks; null where a server has them"),
    ]
    connections: Connections
    rewrite: RewriteState
    backup: BackupState


@router.get("/healthz/live", Access.OPEN, model=Health)
def is_live() -> Response:
    """200 as long as the process answers at all."""
    return Response(200, Health(status="live").json())


@router.get("/healthz/ready", Access.OPEN, model=Health)
async def is_ready(request: RequestParameter) -> Response:
    """200 once the log has been read; 503 before, with how far that is, while the engine is restarted or the
    gateway stops, and once the log cannot be written any more. `failing` names what needs an operator, also
    where reads and some writes go on.

    Callers without the right to `read` all streams learn whether it is ready, and nothing else; so do those
    under a Host that is not the gateway's.
    """
    health = _health(request.gateway)
    is_ready = health.status == "ready"
    if not await _may_know(request):
        health = Health(status="ready" if is_ready else "unavailable")
    return _answer(200 if is_ready else 503, health)


async def _may_know(request: Request) -> bool:
    """Whether the caller may see more than whether the gateway is ready."""
    if request.is_stranger:
        return False
    try:
        await request.authenticate()
    except RefusalError:
        return False
    return request.principal.may(Action.READ, Resource())


def _health(gateway: Gateway) -> Health:
    health = Health(status=gateway.state)
    if gateway.phase in (Phase.STARTING, Phase.RESTARTING) and gateway.operator.progress is not None:
        health.progress = LoadProgress(**gateway.operator.progress._asdict())
    reason = gateway.operator.health.log_failure or gateway.operator.health.backend_outage()
    if reason is not None:
        health.reason = reason
    if failing := gateway.operator.health.failing:
        health.failing = failing
    return health


def _answer(status: int, health: Health) -> Response:
    return Response(status, health.json(), [_RETRY_AFTER] if status == 503 else [])


@router.get("/v1/status", Action.ADMIN, model=GatewayStatus, central=True)
async def get_status(request: RequestParameter) -> GatewayStatus:
    """Show how the gateway is: version, uptime, durability, log, memory, streams, connections, upkeep."""
    gateway, engine = request.gateway, request.gateway.engine
    figures = engine.figures()
    log = figures.log
    report = gateway.operator.report().with_all(await gateway.operator.processes.reports())
    return GatewayStatus(
        status=gateway.state,
        version=VERSION,
        backend=figures.backend,
        missing=list(figures.missing),
        rows=rows.way(),
        uptime_ms=gateway.operator.uptime_ms,
        durability=Durability(fsync=figures.fsync, answers=engine.durability),
        log=log and LogState(**log._asdict()),
        memory=_memory(engine),
        streams=figures.streams,
        streams_closed=figures.closed_streams,
        streams_hidden=figures.hidden_streams,
        connections=Connections(
            open=report.open_connections,
            following=report.following,
            waiting_reads=figures.waiting,
            failed=report.failed,
        ),
        rewrite=RewriteState.of(figures.rewrites),
        backup=BackupState.of(gateway.operator.backups.last),
    )


def _memory(engine: EngineProtocol) -> MemoryState:
    memory = engine.memory
    return MemoryState(
        used_bytes=memory.used_bytes,
        data_bytes=memory.estimated_bytes,
        resident_bytes=memory.resident_bytes,
        bytes_soft=memory.bytes_soft,
        bytes_max=memory.bytes_max,
        full=memory.is_full,
    )
