"""Whether the gateway lives, whether it can serve, and how it is."""

from typing import Annotated, Final, Literal

from pydantic import Field

from app.api.backup import BackupState, RewriteState
from app.auth import Access, Action
from app.gateway import Gateway, Phase
from app.http.models import Count, Milliseconds, ResponseModel, absent
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router
from app.http.responses import Response
from app.version import VERSION
from engine import EngineProtocol

router: Final = Router("gateway")

_PHASES: Final = tuple(phase.value for phase in Phase)
_RETRY_AFTER: Final = (b"retry-after", b"1")


class LoadProgress(ResponseModel):
    """How far reading the log is: its frames are checked, then loaded."""

    step: Literal["checking", "loading"]
    done_bytes: int
    total_bytes: int


class Health(ResponseModel):
    """How the gateway is."""

    status: Annotated[
        str, Field(json_schema_extra={"enum": ["live", *_PHASES, "storage_failed", "unavailable"]})
    ]
    progress: LoadProgress = absent()


class Durability(ResponseModel):
    """When the log is synced, and what an answer promises."""

    fsync: Literal["always", "everysec", "no"]
    answers: Annotated[
        str, Field(description="as `Weir-Durability`", json_schema_extra={"enum": ["fsync", "os"]})
    ]


class LogState(ResponseModel):
    """How the log is. `failure` says why it takes no writes until a restart, null while it does."""

    bytes: Count
    base_bytes: Annotated[Count, Field(description="how much of it a rewrite has left")]
    unsynced_bytes: Annotated[Count, Field(description="what a power cut would take")]
    answers_waiting: Annotated[Count, Field(description="for a write or a sync")]
    failure: str | None


class MemoryState(ResponseModel):
    """The gateway's memory: at `bytes_max` it is full and takes no more data; null is no limit."""

    used_bytes: Annotated[Count, Field(description="what is compared with the limit")]
    data_bytes: Annotated[Count, Field(description="what streams and groups take, by estimate")]
    resident_bytes: Annotated[Count, Field(description="what the system counts for the process")]
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

    status: Annotated[str, Field(json_schema_extra={"enum": ["ready", "storage_failed"]})]
    version: str
    uptime_ms: Milliseconds
    durability: Durability
    log: LogState
    memory: MemoryState
    streams: Count
    connections: Connections
    rewrite: RewriteState
    backup: BackupState


@router.get("/healthz/live", Access.OPEN, model=Health)
async def is_live() -> Response:
    """200 as long as the process answers at all."""
    return Response(200, b'{"status":"live"}')


@router.get("/healthz/ready", Access.OPEN, model=Health)
async def is_ready(request: RequestParameter) -> Response:
    """200 once the log has been read; 503 before, with how far that is, while the engine is restarted or the
    gateway stops, and once the log cannot be written any more.

    Under a Host that is not the gateway's it says whether it is ready, and nothing else.
    """
    health = _health(request.gateway)
    if health.status == "ready":
        return _answer(200, health)
    if request.is_stranger:
        health = Health.model_construct(status="unavailable")
    return _answer(503, health)


def _health(gateway: Gateway) -> Health:
    progress = gateway.progress
    if gateway.phase not in (Phase.STARTING, Phase.RESTARTING) or progress is None:
        return Health.model_construct(status=gateway.state)
    read = LoadProgress.model_construct(**progress._asdict())
    return Health.model_construct(status=gateway.state, progress=read)


def _answer(status: int, health: Health) -> Response:
    body = health.__pydantic_serializer__.to_json(health, exclude_none=True)
    return Response(status, body, [_RETRY_AFTER] if status == 503 else [])


@router.get("/v1/status", Action.ADMIN, model=GatewayStatus)
async def get_status(request: RequestParameter) -> GatewayStatus:
    """Show how the gateway is: version, uptime, durability, log, memory, streams, connections, upkeep."""
    gateway, engine = request.gateway, request.engine
    return GatewayStatus.model_construct(
        status=gateway.state,
        version=VERSION,
        uptime_ms=gateway.uptime_ms,
        durability=Durability.model_construct(fsync=engine.fsync, answers=engine.durability),
        log=LogState.model_construct(**engine.log_figures()._asdict()),
        memory=_memory(engine),
        streams=engine.streams,
        connections=Connections.model_construct(
            open=gateway.connections(),
            following=gateway.followers,
            waiting_reads=engine.waiting,
            failed=gateway.failed_conversations,
        ),
        rewrite=RewriteState.of(engine),
        backup=BackupState.of(gateway.backups.last),
    )


def _memory(engine: EngineProtocol) -> MemoryState:
    memory = engine.memory
    return MemoryState.model_construct(
        used_bytes=memory.used_bytes,
        data_bytes=memory.estimated_bytes,
        resident_bytes=memory.resident_bytes,
        bytes_max=memory.bytes_max,
        full=memory.is_full,
    )
