"""The bugs that the proof must find: a crash test that never failed proves nothing.

Those outside the engine are in `bugs_outside`.

Knows: each bug as a small edit of the engine's text, and the test that finds it.
Must never know: the engine as a module; it is imported with the bug in it.
"""

from typing import Any, Final

from tests.proof.bugs_anywhere import ANYWHERE
from tests.proof.bugs_outside import OUTSIDE
from tests.proof.planting import Bug, Edit, Planted, bug

LOG, WRITER, ENGINE = "engine/log/log.py", "engine/runtime/writer.py", "engine/runtime/engine.py"
TURNS = "engine/runtime/turns.py"
STORING = "engine/runtime/storing.py"
RECOVERY, CODEC, SEAM = "engine/log/recovery.py", "engine/codec.py", "engine/storage/__init__.py"
FILES, DISK, SNAPSHOT = "engine/log/files.py", "engine/storage/file.py", "engine/records/snapshot.py"

_CUTS: Final = "tests.proof.test_power_cuts:test_every_legal_disk_keeps_what_was_promised"
_FAILING: Final = "tests.proof.test_failing_disk:test_no_failed_operation_breaks_a_promise"
_IN_FILES: Final = "tests.proof.test_power_cuts:test_entries_in_files_keep_what_was_promised"
_FULL: Final = "tests.proof.test_failing_disk:test_a_full_disk_is_survived"
_FLIPS: Final = "tests.proof.test_damage:test_a_flipped_bit"
_MOVED: Final = "tests.proof.test_damage:test_frames_that_moved"
_DELETED: Final = "tests.engine.test_rewrite:TestARewrite.test_leaves_no_byte_of_what_was_deleted"
_FOREIGN: Final = "tests.proof.test_damage:test_a_segment_of_another_time_is_not_adopted"
_STOP: Final = "tests/engine/test_log_clean_stop.py"
_RUNS: Final = "tests/engine/test_runs.py"
_DEAD: Final = "        dead = {*self._log.run_files} - {*self._keyspace.runs.files, growing}\n"
_FAULT: Final = "tests/engine/test_fault.py"
_KERNEL: Final = "tests/engine/test_kernel_syncs.py"
_UNDO, _UNDOING = "engine/commands/pending.py", "tests/engine/test_undoing.py"
_READERS, _PUMPS = "app/live/readers.py", "tests/app/test_pumps.py"
_TAILS, _KINDS = "app/doors/sse/tails.py", "tests/app/test_readers.py"
_NEIGHBOURS: Final = "tests/engine/test_neighbours.py"
_SECOND: Final = "tests.proof.test_real_files:test_a_second_process_is_refused"
_SHORT: Final = "tests.proof.test_real_files:test_a_system_that_writes_a_little_at_a_time"


BUGS: Final[dict[str, Bug]] = {
    "answer before the sync": bug(
        WRITER, "            return self.log.durable_upto\n", "            return self.log.written_upto\n",
        _CUTS, fsync="always",
    ),
    "answer before the write": bug(
        WRITER, "        written = self.log.written_upto\n", "        written = self.log.staged_upto\n",
        _CUTS, fsync="no",
    ),
    "waiting reader answered before the sync": bug(
        "engine/runtime/waits.py",
        "self._answer(waiter, reply, ran.position)", "self._answer(waiter, reply, 0)",
        _CUTS, fsync="always",
    ),
    "directory not synced after the manifest's rename": bug(
        SEAM, "        self.rename(temporary, name)\n        self.sync_directory()\n",
        "        self.rename(temporary, name)\n", _CUTS, fsync="always",
    ),
    "manifest not synced before its rename": bug(
        SEAM, "                handle.append(chunk)\n            handle.sync()\n",
        "                handle.append(chunk)\n", _CUTS, fsync="always",
    ),
    "checksum of a frame not checked": bug(
        CODEC, "        if crc32(payload, head_check) != checksum:", "        if False:", _FLIPS,
    ),
    "chain of frames not checked": bug(
        CODEC, "        if number != sequence or before != previous:", "        if False:", _MOVED,
    ),
    "pending list left out of the snapshot": bug(
        SNAPSHOT, "        yield from _restore_pending(held.name, group)\n", "        yield from ()\n",
        _CUTS, fsync="no",
    ),
    "short write not continued": bug(DISK, "    while rest:\n", "    if rest:\n", _SHORT),
    "deleted entries kept in the base": bug(
        SNAPSHOT, "entries.blank(text) if node.deleted >> place & 1 else text", "text", _DELETED,
    ),
    "reservation of IDs not kept": bug(
        ENGINE, "keyspace.floor_ms = log.recovery.floor_ms", "keyspace.floor_ms = -1",
        _CUTS, fsync="everysec",
    ),
    "IDs shown before their reservation is safe": bug(
        WRITER, "        if shown_ms > self._promised_ms:\n", "        if False:\n", _CUTS, fsync="no",
    ),
    "durable_upto overstated": bug(
        LOG, "            kind, self._sequence + 1, self.durable_upto, self._checksum, self._salt, payload\n",
        "            kind, self._sequence + 1, self.staged_upto, self._checksum, self._salt, payload\n",
        _CUTS, fsync="no",
    ),
    "torn tail not cut": bug(
        RECOVERY, "    storage.truncate(name, length)\n", "", _CUTS, fsync="everysec",
    ),
    "failed sync tried again": bug(
        LOG, '                raise self._poison("sync", self._segment, error) from error\n',
        "                handle.sync()\n", _FAILING, fsync="always",
    ),
    "failed sync of the kernel taken for success": bug(
        LOG, "        if error is not None:\n            raise self._poison(",
        "        if False:\n            raise self._poison(",
        f"{_KERNEL}::test_a_sync_that_fails_in_the_kernel_ends_the_log",
    ),
    "failed log written again": bug(
        LOG, "        if self.poisoned is not None:\n", "        if False:\n", _FAILING, fsync="always",
    ),
    "waiting for a failed log": bug(
        WRITER, "        if self.log.poisoned is not None or self._abandoned:\n            # No further",
        "        if False:\n            # No further", _FAILING, fsync="always",
    ),
    "full disk found too late": bug(
        LOG, "        if needed_upto <= self._reserved_upto:\n", "        if True:\n", _FULL, fsync="always",
    ),
    "command in two frames": bug(
        TURNS, "            position = self._writer.stage(encode(turn.records))\n",
        "            for one in turn.records:\n"
        "                position = self._writer.stage(encode([one]))\n", _CUTS, fsync="no",
    ),
    "base not synced": bug(
        FILES, "            self._handle.sync()\n            self._storage.sync_directory()\n",
        "            self._storage.sync_directory()\n", _CUTS, fsync="always",
    ),
    "old files removed before the manifest": bug(
        LOG, "        old = self._manifest\n        segments =",
        "        old = self._manifest\n        self._storage.unlink(old.files()[0].name)\n        segments =",
        _CUTS, fsync="always",
    ),
    "run let go before it is synced": bug(
        FILES, "            self._handle.append(content)\n            self._handle.sync()\n",
        "            self._handle.append(content)\n", f"{_RUNS}::test_a_power_cut_at_any_step_loses_nothing",
    ),
    "run served without its checksum": bug(
        "engine/runs.py", "    if crc32(frame) != checksum:\n", "    if not frame:\n",
        f"{_RUNS}::test_no_damage_of_a_file_is_served",
    ),
    "files of runs removed while a run refers to them": bug(
        "engine/runtime/rewriting.py", _DEAD,
        "        dead = {*self._log.run_files} - {growing}\n",
        f"{_RUNS}::test_a_file_stays_as_long_as_a_run_refers_to_it",
    ),
    "deletion forgotten as a run is stored anew": bug(
        STORING, "_chosen(name, one.of(run))", "_chosen(name, one._nodes)",
        f"{_RUNS}::test_what_is_left_of_a_sparse_file_is_stored_anew",
    ),
    "runs left out of the snapshot": bug(
        SNAPSHOT, "            yield RestoreRun.of(held.name, part)\n", "            continue\n",
        _IN_FILES, fsync="no",
    ),
    "file of runs cut to less than what refers to it": bug(
        "engine/runtime/loading.py", "part.offset + part.length)", "part.offset)", _IN_FILES, fsync="no",
    ),
    "nodes let go that have changed since they were stored": bug(
        "engine/commands/storing.py",
        "all(key.stream.nodes.get(part.first) is part for part in parts)",
        "all(key.stream.nodes.get(part.first) is not None for part in parts)",
        f"{_RUNS}::test_nodes_that_change_while_they_are_written_stay",
    ),
    "fork that forgets an entry of the run in which it ends": bug(
        "engine/commands/durable.py",
        "ForkStored(*place, origin.texts)", "ForkStored(*place, origin.texts[1:])",
        f"{_RUNS}::test_a_fork_that_ends_in_a_run_is_whole_without_the_file",
    ),
    "file of runs that grows after it has failed": bug(
        STORING, "            self._file = None\n            raise\n", "            raise\n",
        f"{_RUNS}::test_a_file_that_has_failed_grows_no_more",
    ),
    "backup without files of runs": bug(
        "engine/log/backup.py", "    stored = _copy_runs(view, target, referred)\n", "    stored = []\n",
        f"{_RUNS}::test_a_backup_has_the_files_of_runs",
    ),
    "file of runs that grows removed by a rewrite": bug(
        "engine/runtime/rewriting.py", _DEAD,
        "        dead = {*self._log.run_files} - {*self._keyspace.runs.files}\n",
        f"{_RUNS}::test_a_file_that_grows_stays_though_nothing_refers_to_it",
    ),
    "file of runs that was made beside a base removed with what is before it": bug(
        "engine/log/log.py", " if run not in dead_runs))\n",
        " if run < base.number and run not in dead_runs))\n",
        f"{_RUNS}::test_nodes_are_stored_while_a_rewrite_writes",
    ),
    "run taken for another one": bug(
        "engine/runs.py", " or checksum not in (None, found):", ":",
        "tests/proof/test_damage.py::test_no_damage_of_files_of_runs_is_served",
    ),
    "following segment adopted without its chain": bug(
        RECOVERY, "        if _goes_on(storage, segment):\n", "        if True:\n", _FOREIGN,
    ),
    "length of the log not recorded at a clean stop": bug(
        LOG, "        self._record_stop()\n\n", "\n", f"{_STOP}::test_the_last_file_is_recorded",
    ),
    "length of the log recorded before it is synced": bug(
        LOG, "        self.sync()\n        self._record_stop()\n",
        "        self._record_stop()\n        self.sync()\n", _CUTS, fsync="always",
    ),
    "log shorter than at a clean stop served": bug(
        RECOVERY, "        _check_stopped(file, surveys[file.name])\n", "",
        f"{_STOP}::test_the_refusal_says_how_much_there_was",
    ),
    "names not synced at a start": bug(
        LOG, "        storage.sync_directory()\n        return cls", "        return cls",
        "tests/engine/test_log_recovery.py::TestAFreshDirectory",
    ),
    "foreign file deleted at a start": bug(
        "engine/log/leftovers.py", "            if name in ours:\n", "            if True:\n",
        "tests/engine/test_leftovers.py",
    ),
    "more than two seconds at risk": bug(
        WRITER, "since + RISK_S_MAX, self._hold_if_late", "since + 10, self._hold_if_late",
        "tests/engine/test_runtime.py::TestCrashes",
    ),
    "texts forgotten that were not compressed": bug(
        "engine/runtime/packing.py", "            self._keyspace.cold[:0] = texts\n", "",
        "tests/engine/test_packing.py",
    ),
    "gap off by one": bug(
        "engine/commands/reading.py", "return 0 < cursor < stream.removed_upto",
        "return 0 < cursor + 1 < stream.removed_upto", _NEIGHBOURS,
    ),
    "an entry trimmed that is not archived": bug(
        "engine/commands/retention.py", "min(kept_from, kept.archived_up_to + 1)",
        "min(kept_from, kept.archived_up_to + 2)", _NEIGHBOURS,
    ),
    "exclusive end of a range off by one": bug(
        "app/http/query.py", "parsed += -1 if upper else 1", "parsed += -2 if upper else 1",
        "tests/app/test_neighbouring_ids.py",
    ),
    "cut above every ID not written": bug(
        "engine/records/changes.py", "    below: Bound\n", "    below: Id\n",
        "tests/engine/test_ends_of_ranges.py::test_the_highest_entry_can_be_trimmed_away",
    ),
    "change remembered only once it is made": bug(
        "engine/commands/turn.py",
        "        self.records.append(record)\n        record.apply(self.keyspace)\n",
        "        record.apply(self.keyspace)\n        self.records.append(record)\n", _FAULT,
    ),
    "clean stop after a fault": bug(
        ENGINE, "        if self._turns.shut is errors.restarting:\n            await self.finish_turns()",
        "        if False:\n            await self.finish_turns()", _FAULT,
    ),
    "engine that goes on after a fault": bug(
        TURNS, "            self.shut = errors.restarting\n", "", _FAULT,
    ),
    "entries taken without credit": bug(
        "app/doors/websocket/stream_subscription.py", "credit.left is None or count < credit.left",
        "credit.left is None or count < max(2, credit.left)", "tests/app/test_live_pages.py",
    ),
    "conversation that goes on after its failure": bug(
        "app/doors/websocket/connection.py", "            one.fail(error)\n", "            pass\n",
        "tests/app/test_push_failures.py",
    ),
    "page written twice behind a full sink": bug(
        _READERS, "        self._sink.write(place, item)\n        if not self.open:",
        "        self._sink.write(place, item)\n"
        "        if isinstance(item, FeedPage) and self._sink.room() is None:\n"
        "            self.tails[place].cursor = item.after\n        if not self.open:", _PUMPS,
    ),
    "live page taken before it is written": Bug((
        Edit(
            _READERS, "            if page is None or not self._sink.write_live(place, page):",
            "            if page is not None:\n                tail.take_live(page)\n"
            "            if page is None or not self._sink.write_live(place, page):",
        ),
        Edit(
            _READERS, "            elif not self.is_over:\n                tail.take_live(page)",
            "            elif not self.is_over:\n                pass",
        ),
    ), _PUMPS, {}),
    "history given back": bug(
        _READERS, "if found is not None and not found.history:", "if found is not None:", _PUMPS,
    ),
    "pump that goes on after its end": bug(
        _READERS,
        'Write nothing more, and tell the sink."""\n        if not self.is_over:\n            self.stop()\n',
        'Write nothing more, and tell the sink."""\n        if not self.is_over:\n', _PUMPS,
    ),
    "end of a drained group not said": Bug((
        Edit(
            "app/doors/sse/consumers.py", 'text += wire.drained() if taken.end.drained else b""', "pass",
        ),
        Edit(
            "app/doors/websocket/group_subscription.py", "if taken.end is not None and taken.end.drained:",
            "if False:",
        ),
    ), _KINDS, {}),
    "a frame's entries counted as delivered when it is written": bug(
        "app/doors/websocket/socket_link.py", "        self._frames.append((end, count, work, entry_ids))\n",
        "        self._deliver(count)\n        self._frames.append((end, 0, work, entry_ids))\n", _KINDS,
    ),
    "a piece's entries counted as delivered before it has left": Bug((
        Edit(
            _TAILS, "                        await put(piece)\n",
            '                        self._gateway.reports.counters.deliver("sse", self._entries)\n'
            "                        await put(piece)\n",
        ),
        Edit(_TAILS, "                if is_sent:\n", "                if False:\n"),
    ), _KINDS, {}),
    "a piece in the output budget only while it is sent": Bug((
        Edit(
            _TAILS,
            "        if len(self._piece) > FREE_BYTES:\n            self._hold(len(self._piece))\n",
            "",
        ),
        Edit(
            _TAILS, "                        await put(piece)\n",
            "                        if len(piece) > FREE_BYTES:\n"
            "                            self._hold(len(piece))\n                        await put(piece)\n",
        ),
    ), "tests/app/test_sse.py::test_a_piece_is_in_the_output_budget_from_its_writing_on", {}),
    "undone though the group was moved": bug(
        _UNDO, "(key.generation, group.move) == (mark.generation, mark.move)",
        "key.generation == mark.generation", _UNDOING,
    ),
    "undone though the stream is another generation": bug(
        _UNDO, "(key.generation, group.move) == (mark.generation, mark.move)",
        "group.move == mark.move", _UNDOING,
    ),
    "undone in a group that was made again": bug(
        _UNDO, "    if group.number != mark.group:\n        return False\n", "", _UNDOING,
    ),
    "undone though an entry was claimed meanwhile": bug(
        _UNDO, "        and state.order == order\n", "", _UNDOING,
    ),
    "a move to where it is does not count": bug(
        "engine/commands/grouping.py", "    group.note_move()\n", "", _UNDOING,
    ),
    "an entry that nobody saw counts as delivered": bug(
        _UNDO, "less = [max(0, count - 1)", "less = [count", _UNDOING,
    ),
    "directory not locked": bug(
        DISK, "            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n", "            pass\n",
        _SECOND,
    ),
    **OUTSIDE,
}  # fmt: skip

# All that the matrix asks for.
MATRIX: Final = {**{name: Planted(bug.edits) for name, bug in BUGS.items()}, **ANYWHERE}

# What the gate plants each time: one of each kind, the quickest.
SUBSET: Final = (
    "answer before the sync",
    "directory not synced after the manifest's rename",
    "checksum of a frame not checked",
    "short write not continued",
    "failed sync tried again",
)


def case(name: str) -> Bug:
    """The bug of that name; for a test's name no bug at all, and its first arguments."""
    if name in BUGS:
        return BUGS[name]
    finder, _, number = name.partition("#")
    arguments = [bug.arguments for bug in BUGS.values() if bug.finder == finder]
    return Bug((), finder, arguments[int(number or 0)])


def controls() -> list[str]:
    """Every finder with every arguments, without a bug: it must pass, or its findings mean nothing."""
    seen: list[tuple[str, dict[str, Any]]] = []
    names: list[str] = []
    counts: dict[str, int] = {}
    for one in BUGS.values():
        number = counts.get(one.finder, 0)
        counts[one.finder] = number + 1
        if (one.finder, one.arguments) not in seen:
            seen.append((one.finder, one.arguments))
            names.append(f"{one.finder}#{number}")
    return names
