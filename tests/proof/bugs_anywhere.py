"""Bugs without a test that is named for them: the matrix shows which tests find each.

Knows: each bug as a small edit of a file's text. Must never know: the tests; whoever writes a bug here has
written none that is to find it.
"""

from typing import Final

from tests.proof.planting import Edit, Planted

_DURABLE, _RESP, _SOCKET = "app/doors/durable", "app/doors/resp", "app/doors/websocket"
_READING, _TAILS = f"{_DURABLE}/reading.py", "app/doors/sse/tails.py"
_TABLE, _RENAMING = f"{_SOCKET}/subscription_table.py", "app/tenants/renaming.py"
_REMOTE, _LEASES = "app/fronts/remote_engine.py", "app/live/leases.py"
_READERS: Final = "app/live/readers.py"
# Tests that a bug names: where there are no probes, or what runs its lines does so before it begins.
_TYPESCRIPT: Final = "tests/typescript"


def _bug(file: str, old: str, new: str, *asked: str) -> Planted:
    return Planted((Edit(file, old, new),), asked)


_DOORS: Final = {
    # ---- Durable Streams
    "an offset right behind what was removed taken for one before": _bug(
        _READING, "0 < after < info.removed_upto and", "0 < after <= info.removed_upto and"
    ),
    "a long-poll that ends with its stream does not say so": _bug(
        _READING, "there = replace(info, closed=bool(reply.closed))", "there = info"
    ),
    "the place of a follower kept that could not begin": _bug(
        _READING,
        "    except BaseException:\n        place.leave()\n        raise\n",
        "    except BaseException:\n        raise\n",
    ),
    "a fork made of a stream that its caller may not read": _bug(
        f"{_DURABLE}/writing.py", "        request.require(Action.READ, fork.source)\n", "        pass\n"
    ),
    "a page from before the end of its stream still fresh": _bug(
        _READING, 'end = b":c" if page.has_ended else b""', 'end = b""'
    ),
    # ---- server-sent events
    "the place of a follower kept whose events have ended": _bug(
        _TAILS,
        "            self._place.leave()\n            connections[",
        "            connections[",
    ),
    "entries that a consumer's events did not carry are not given back": _bug(
        "app/doors/sse/consumers.py",
        "self.pump.give_back(self._given)",
        "self.pump.consumer.release(self._given)",
    ),
    "a gap of one of several streams moves the cursor of the first": _bug(
        "app/doors/sse/cursors.py",
        "wanted.written([*places[:place], report.next, *places[place + 1 :]])",
        "wanted.written([report.next, *places[1:]])",
    ),
    # ---- Redis's port
    "WATCH of a stream that is watched already forgets its version": _bug(
        f"{_RESP}/session.py",
        "for stream in dict.fromkeys(streams) if stream not in self.watched]",
        "for stream in dict.fromkeys(streams)]",
    ),
    "a client that logs in anew adds with the rights of before": _bug(
        f"{_RESP}/session.py", " or self.known is not self._added_by:", ":"
    ),
    "CLIENT LIST with IDs shows the clients of others": _bug(
        f"{_RESP}/commands/client_commands.py",
        "chosen = [other for other in chosen if other.id in wanted]",
        "chosen = [other for other in session.others.values() if other.id in wanted]",
    ),
    # ---- WebSocket
    "a consumer goes on under a token for another consumer": _bug(
        f"{_SOCKET}/group_subscription.py",
        "Resource(*self.consumer.key)",
        "Resource(*self.consumer.key[:2])",
    ),
    "what comes for an ended subscription is not given back": _bug(
        _READERS, "                self._decline(found)\n                return\n", "                return\n"
    ),
    "a socket that drains closes before the last acknowledgement": _bug(
        _TABLE, "any(one.held for one in", "any(one.paused for one in"
    ),
}

_REST: Final = {
    "only the first tag of If-None-Match looked at": _bug(
        "app/http/conditional.py", "for one in given if uncoded(one)", "for one in given[:1] if uncoded(one)"
    ),
    "a list of streams leaves one out between two pages": _bug(
        "app/api/streams.py", "readable[limit - 1][0])", "readable[limit][0])"
    ),
    "pending entries passed on to a consumer that is another's": _bug(
        "app/api/groups/consumers.py",
        "request.require(Action.CONSUME, stream, group, heir)",
        "request.require(Action.CONSUME, stream, group, consumer)",
    ),
    "entries of any consumer given back by who is one of them": _bug(
        "app/api/groups/pending.py",
        "group, given.consumer or ANY_CONSUMER)\n    nack =",
        "group, given.consumer)\n    nack =",
    ),
    "dead letters taken from a stream that the caller may not write": _bug(
        "app/api/groups/dead_letters.py",
        "request.require(Action.WRITE, letters)",
        "request.require(Action.WRITE, stream)",
    ),
    "an export goes on in another stream of its name": _bug(
        "app/api/entries/export.py",
        "if edges is None or edges.generation != self.edges.generation:",
        "if edges is None:",
    ),
    "a second look for dead letters finds as many as the first": _bug(
        "app/api/groups/dead_letters.py", "count=most - len(found)", "count=most"
    ),
    "tokens shown to a caller of the same name in another tenant": _bug(
        "app/api/tokens.py",
        "token.created_by == principal.name and all(\n"
        '        (grant.prefix or "").startswith(principal.prefix) for grant in token.grants\n'
        "    )",
        "token.created_by == principal.name",
    ),
    "entries stay delivered to a read that finds no memory": _bug(
        "app/http/requests.py",
        "            if isinstance(command, XReadGroup):\n"
        "                self.undo_read(command, reply)\n"
        "            raise\n",
        "            raise\n",
    ),
    "IDs of a batch given to the wrong entries where some are for later": _bug(
        "app/http/entries/publishing.py",
        "[add.ids[place] for place in rest] if add.ids",
        "add.ids[: len(rest)] if add.ids",
    ),
}

_LIVE: Final = {
    "an entry that is delivered again takes credit twice": _bug(
        "app/live/consumer.py",
        "            self.release(given)\n            self.credit.spend(",
        "            self.credit.spend(",
    ),
    "a third reader of a consumer does not wait for the first": Planted(
        (
            Edit(
                _LEASES,
                "                self.alone.set_result(None)\n                self.end_operation()\n",
                "                self.alone.set_result(None)\n",
            ),
            Edit(
                _LEASES,
                "        self.begin_operation()\n        for end in tuple(left):",
                "        for end in tuple(left):",
            ),
        )
    ),
    "another gateway takes a consumer over while it still reads here": _bug(
        "app/live/other_gateways.py",
        "if lease is None or lease.over.done():",
        "if lease is None or lease.is_stopped:",
    ),
    "a cursor of an earlier stream read as one of the stream there is": _bug(
        "app/live/feeds.py",
        "look = XRead(streams=[(feed.stream, cursor)], count=1, known=[self.generation])",
        "look = XRead(streams=[(feed.stream, cursor)], count=1, known=[feed.generation])",
    ),
    "the place of a wait kept whose client has left": _bug(
        "app/live/waiting.py",
        "            place.leave()\n            if not ended.cancelled():\n",
        "            if not ended.cancelled():\n                place.leave()\n",
    ),
    "connections go on whose token another gateway has revoked": _bug(
        "app/live/token_store.py",
        "                    self._sessions.revoke(self._policy.is_revoked)\n",
        "",
    ),
    "a second token expires without a warning": _bug(
        "app/live/sessions.py",
        "        self.principal = principal\n        self._warned = False\n        self._begin()",
        "        self.principal = principal\n        self._begin()",
    ),
    "slow peers closed though there is room again": _bug(
        "app/live/budgets.py",
        "            if not self._is_crowded:\n                break\n            self.closed += 1",
        "            self.closed += 1",
    ),
}

_REDIS: Final = {
    "a client repeats what may have been done": _bug(
        "app/redis/queue.py",
        'and (not isinstance(reply, EngineError) or reply.members.get("outcome") == "unknown")',
        "and not isinstance(reply, EngineError)",
    ),
    "the second of two consumers in a pipeline not looked at": _bug(
        "app/redis/bodies.py", "parsed.streams, group, consumer\n", "parsed.streams, group\n"
    ),
    "a transaction on disk only where all its commands ask for it": _bug(
        "app/redis/queue.py", "synced = any(isinstance(", "synced = all(isinstance("
    ),
    "the place of a wrong ID tells of streams that may not be read": _bug(
        "app/redis/parsers/parse_reads.py",
        "return msgspec.structs.replace(found, streams=tuple(dict.fromkeys(keys)))",
        "return found",
    ),
    "a claimed entry with another count of deliveries": _bug(
        "app/redis/replies.py",
        "[delivered.idle_ms, delivered.deliveries]",
        "[delivered.idle_ms, delivered.delivery_count]",
        "tests/app/test_redis_commands.py",
    ),
    "each command of a pipeline waits as long as all of them may": _bug(
        "app/redis/bodies.py",
        "left_ms = max(1, int((ends_s - monotonic()) * 1000))",
        "left_ms = settings.wait_ms_max",
    ),
    "RENAME onto a stream that the caller may not write": _bug(
        "app/redis/rights.py",
        "(parsed.target_actions, targets or [source])",
        "(parsed.target_actions, [source])",
    ),
    "what the commands of a pipeline deliver is not counted": _bug(
        "app/redis/queue.py",
        "                self.work.note_reply(parsed.command, reply)\n",
        "                pass\n",
    ),
}

_TENANTS: Final = {
    "streams that a plan misses shown with the prefix": _bug(
        "engine/replies.py", "missing: Sequence[StreamKey]", "missing: Sequence[str]"
    ),
    "paused streams of a read shown with the prefix": _bug(
        "engine/replies.py", "paused: Sequence[StreamKey]", "paused: Sequence[str]"
    ),
    "two tenants answered under one idempotency key": _bug(
        _RENAMING, "{name: names.add_to_key(getattr(key, name))}", "{name: getattr(key, name)}"
    ),
    "a thousand tenants forgotten with those that are followed": _bug(
        "app/tenants/tenant.py", "if len(tenant.feeds)}", "if not len(tenant.feeds)}"
    ),
    "facts of a refusal with the prefix": _bug(
        _RENAMING,
        "key: added.get(value, value) if isinstance(value, str) else value\n",
        "key: value\n",
    ),
}

_FRONTS: Final = {
    "leases of a front that has ended kept for ever": _bug(
        "app/fronts/engine_port.py",
        "        for number in list(self._held):\n            self._leave(number)\n",
        "",
    ),
    "a consumer of a tenant leased under another stream's name": _bug(
        _REMOTE, "self._link.send(MessageKind.LEASE, number, list(key))",
        "self._link.send(MessageKind.LEASE, number, list(consumer))",
    ),
    "a coded body passed on decoded, under its coding": _bug(
        "app/fronts/forwarding.py", '(b"content-encoding", b"content-length")', '(b"content-length",)'
    ),
    "what a lost front has sent is said not to be done": _bug(
        _REMOTE, "Refused(errors.restarting(is_unknown=True))", "Refused(errors.restarting())"
    ),
    "a front accepts what was revoked before an older log": _bug(
        "app/fronts/front_life.py", "                policy.revoke(file.kept)\n", ""
    ),
}  # fmt: skip

_CLUSTERED: Final = {
    "an acknowledgement of what another consumer holds": _bug(
        "engine/cluster/lua/acknowledge.lua",
        "(row and is_held_by(row, consumer))",
        "row",
        "tests/cluster/test_dead_letters.py",
        "tests/cluster/test_group_scripts.py",
        "tests/cluster/test_hidden_consumers.py",
    ),
    "a guarded trim asks the group that is furthest": _bug(
        "engine/cluster/lua/trimming.lua",
        "if from and (not needed or id_less(from, needed)) then",
        "if from and (not needed or id_less(needed, from)) then",
        "tests/cluster/test_scripts_removing.py",
        "tests/engine/test_retention.py",
    ),
    "an entry deleted that another group has still to read": _bug(
        "engine/cluster/lua/delete_each.lua",
        "if is_unread or #redis.call(",
        "if #redis.call(",
        "tests/cluster/test_deleting_by_references.py",
        "tests/cluster/test_scripts_removing.py",
    ),
    "a write that may have been done is said not to be done": _bug(
        "engine/cluster/sending.py",
        "        if errand.lost is not None and isinstance(reply, EngineError) and reply.code in _NOT_DONE:\n"
        "            reply = refusal_of(errand.lost, writes=True)\n",
        "",
    ),
    "entries stay with a reader that has left meanwhile": _bug(
        "engine/cluster/group_waits.py",
        "        if waiter.is_over and isinstance(result, GroupRead):\n"
        "            for back in taking_back(waiter.command, result):\n"
        "                self._take_back(back)\n"
        "        elif has_entries",
        "        if has_entries",
    ),
    "a ticket used twice at two gateways": _bug(
        "engine/cluster/gateways.py", '[("GETDEL", key)]', '[("GET", key)]'
    ),
}

_CLIENTS: Final = {
    "a client repeats a call that may have been carried out": _bug(
        "sdk/python/weir/_retrying.py",
        'if error.code == "backend_error" or (error.outcome_unknown and not self._repeatable):',
        'if error.code == "backend_error":',
    ),
    "a worker takes more while settlements are under way": _bug(
        "sdk/python/weir/_holdings.py",
        "self.credit - len(self._held) - len(self._unconfirmed)",
        "self.credit - len(self._held)",
    ),
    "the TypeScript client repeats what may have been carried out": _bug(
        "sdk/typescript/src/http.ts",
        'return BUSY.includes(error.status) && error.problem.outcome !== "unknown";',
        "return BUSY.includes(error.status);",
        _TYPESCRIPT,
    ),
    "a TypeScript worker gets back what its program has left": _bug(
        "sdk/typescript/src/holdings.ts",
        "if (delivery === undefined || this.#dropped.has(delivery)) return undefined;",
        "if (delivery === undefined) return undefined;",
        _TYPESCRIPT,
    ),
}

ANYWHERE: Final[dict[str, Planted]] = {
    **_DOORS,
    **_REST,
    **_LIVE,
    **_REDIS,
    **_TENANTS,
    **_FRONTS,
    **_CLUSTERED,
    **_CLIENTS,
}
