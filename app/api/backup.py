"""Upkeep of the whole gateway: rewriting its log, backups."""

from typing import Final

import msgspec

from app.auth import Action
from app.http import members, query
from app.http.calls import Answer, Call
from app.http.routing import Routes
from app.wire import upkeep

routes: Final = Routes()

_REWRITE: Final = "/v1/admin/rewrite"
_BACKUP: Final = "/v1/admin/backup"


@routes.post(_REWRITE, Action.ADMIN, "startRewrite")
async def start_rewrite(call: Call) -> Answer:
    """Begin to make the log as short as what is in memory; the rewrite that is under way, if there is one."""
    await call.members()
    call.engine.rewriting.begin()
    return Answer(202, upkeep.rewrite(call.engine), [(b"location", _REWRITE.encode())])


@routes.get(_REWRITE, Action.ADMIN, "getRewrite")
async def get_rewrite(call: Call) -> Answer:
    """Show the last rewrite, or the one under way."""
    query.parse(call.query, ())
    return Answer(200, upkeep.rewrite(call.engine))


@routes.post(_BACKUP, Action.ADMIN, "startBackup")
async def start_backup(call: Call) -> Answer:
    """Begin a backup; it holds everything that was acknowledged before."""
    name = members.text(await call.members("name"), "name", "the backup's name, a string, is missing")
    begun = await call.gateway.backups.start(name)
    return Answer(202, msgspec.json.encode(begun), [(b"location", _BACKUP.encode())])


@routes.get(_BACKUP, Action.ADMIN, "getBackup")
async def get_backup(call: Call) -> Answer:
    """Show the last backup, or the one under way."""
    query.parse(call.query, ())
    return Answer(200, msgspec.json.encode(call.gateway.backups.last))
