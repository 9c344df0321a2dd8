"""Bugs outside the engine, which the tests of the gateway, of its doors, of a cluster and of Spark must find.

Knows: each bug as a small edit of a file's text, and the file of tests that finds it. A gateway in a process
of its own would be without the bug, so these tests have theirs in the process of pytest.
Must never know: the code as modules; it is imported with the bug in it.
"""

from typing import Final

from tests.proof.planting import Bug, bug

_QUERY, _LIMITER = "app/http/query.py", "app/auth/rate_limiter.py"
_SUBSCRIPTIONS, _TRANSACTION = "app/doors/resp/subscriptions.py", "app/doors/resp/session.py"
_FRAMES, _REPLIES = "app/doors/websocket/frame_reader.py", "engine/cluster/replies.py"
_IDS, _RANGES = "spark/pyspark_weir/ids.py", "spark/pyspark_weir/table/ranges.py"
_FILTERS, _PARQUET = "spark/pyspark_weir/filters.py", "spark/pyspark_weir/table/parquet.py"

_SESSIONS: Final = "tests/app/resp/test_sessions.py"
_DAMAGES: Final = "tests/spark/test_damaged_bytes.py"
_SPARK_IDS: Final = "tests/spark/test_ids.py"
_TABLE: Final = "tests/spark/table/test_table_ranges.py"
_PUSHDOWN: Final = "tests/spark/test_source_pushdown.py"

OUTSIDE: Final[dict[str, Bug]] = {
    # ---- the gateway
    "a weak entity tag taken for a strong one": bug(
        "app/http/conditional.py", "return tag in map(uncoded, expected)",
        'return tag in [uncoded(one.removeprefix(b"W/")) for one in expected]',
        "tests/app/test_conditional.py",
    ),
    "the last of two parameters of a name taken": bug(
        _QUERY, '            raise invalid(name, "the parameter is given twice")\n',
        "            values[name] = value\n",
        "tests/app/test_wrong_values.py::test_a_wrong_parameter_is_named",
    ),
    "a time between two milliseconds rounded down": bug(
        _QUERY, "(1 if beyond and not upper else 0)", "0", "tests/app/test_read.py",
    ),
    "bytes of an answer not charged": bug(
        _LIMITER, "        self._add(0, size, now_s)\n", "", "tests/app/test_rates.py",
    ),
    "wrong credentials not counted": bug(
        _LIMITER, "        self._failed.take_tokens(key, self._failures, 1, now_s)\n", "",
        "tests/app/test_rates.py",
    ),
    "one more than a caller may hold": bug(
        "app/live/shares.py", "held >= self._each_max", "held > self._each_max", "tests/app/test_shares.py",
    ),
    "all pieces of a caller in one cycle": bug(
        "app/live/turns.py", "            if turns:\n                turns.popleft()",
        "            while turns:\n                turns.popleft()", "tests/app/test_turns_of_callers.py",
    ),
    "a peer that takes nothing never counts as stalled": bug(
        "app/live/stalls.py", "0 if taken > self._taken", "0 if taken >= self._taken",
        "tests/app/resp/test_disconnections.py",
    ),
    "a lone CR does not end a line of an event": bug(
        "app/doors/sse/events.py", ' or b"\\r" in data:', ":", "tests/app/test_sse_encoding.py",
    ),
    # ---- Redis's words, and its port
    "an integer that JavaScript cannot hold sent as a number": bug(
        "app/redis/resp.py", "_INTEGER_MAX: Final = (1 << 53) - 1", "_INTEGER_MAX: Final = 1 << 53",
        "tests/app/test_redis_resp.py",
    ),
    "the COUNT of XAUTOCLAIM not bounded": bug(
        "app/redis/bounds.py", "if type(command) is types.XAutoClaim and",
        "if type(command) is types.XAdd and", "tests/app/test_command_bounds.py",
    ),
    "an ID left out of base64": bug(
        "app/redis/written.py", "entry_id, fields = b64encode(entry_id), list(", "fields = list(",
        "tests/app/test_redis_written.py",
    ),
    "EXEC runs though a watched stream has changed": bug(
        "app/redis/queue.py", "if guard and found[0] is not True:", "if guard and found[0] is None:",
        _SESSIONS,
    ),
    "EXEC runs though a command could not be queued": bug(
        _TRANSACTION, "        self.is_discarded = True\n", "", _SESSIONS,
    ),
    "one command more than a transaction may have": bug(
        _TRANSACTION, "len(self.requests) >= self._commands_max", "len(self.requests) > self._commands_max",
        _SESSIONS,
    ),
    "events of streams that a client may not see": bug(
        _SUBSCRIPTIONS, "            if subscriber.may_see(stream):\n", "            if stream:\n",
        "tests/app/resp/test_attacks.py",
    ),
    "a client that has left is sent events of its patterns": bug(
        _SUBSCRIPTIONS, "            self.unsubscribe_pattern(subscriber, pattern)\n", "            pass\n",
        "tests/app/resp/test_small_commands.py",
    ),
    # ---- WebSocket
    "a member that occurs twice taken": bug(
        _FRAMES, "text.count(b'\"') != 2 * _strings(frame)", "not text",
        "tests/app/websocket/test_session_frames.py",
    ),
    "the ref of a refused frame looked for too deep": bug(
        _FRAMES, "elif depth == 1 and (", "elif depth and (", "tests/app/websocket/test_session_frames.py",
    ),
    # ---- a cluster
    "an empty hash tag taken for one": bug(
        "engine/cluster/keys.py", "if end > start + 1:", "if end > start:", "tests/cluster/test_keys.py",
    ),
    "an entry larger than an answer never given": bug(
        _REPLIES, "if place and size > bytes_max", "if size > bytes_max", "tests/cluster/test_executor.py",
    ),
    "the consumer of released entries shown": bug(
        _REPLIES, "return None if name in NO_CONSUMERS else name", "return name",
        "tests/cluster/test_executor.py",
    ),
    # ---- Spark
    "no ID after the last sequence of a millisecond": bug(
        _IDS, "if one.seq < HALF_MAX:", "if one.seq <= HALF_MAX:", _SPARK_IDS,
    ),
    "the ID before a millisecond begins is its first": bug(
        _IDS, "EntryId(one.ms - 1, HALF_MAX)", "EntryId(one.ms - 1, 0)", _SPARK_IDS,
    ),
    "a range cut beyond its end": bug(
        "spark/pyspark_weir/planning.py", "if ids.is_after(one.end, place)]", "]",
        "tests/spark/test_planning.py",
    ),
    "one place in two texts": bug(
        "spark/pyspark_weir/offsets.py", "for key in sorted(offsets)}", "for key in offsets}",
        "tests/spark/test_offsets.py",
    ),
    "a batch that leaves entries out archived": bug(
        _RANGES, "if moved.after != begin:", "if moved.after < begin:",
        "tests/spark/table/test_table_commits.py",
    ),
    "a batch that is archived already archived again": bug(
        _RANGES, "if batch.number > self.queries", "if batch.number >= self.queries", _TABLE,
    ),
    "pages of an archive read unchecked": bug(
        _PARQUET, "page_checksum_verification=True", "page_checksum_verification=False", _DAMAGES,
    ),
    "footers of an archive read unchecked": bug(
        _PARQUET, "if is_checked and seal != _seal(footer)", "if is_checked and seal == footer", _DAMAGES,
    ),
    "trimmed upon a count": bug(
        "spark/pyspark_weir/jobs/trim.py", "if part.fault is not None:", "if part.fault == '':",
        "tests/spark/test_trim.py",
    ),
    "features of Delta's not looked at": bug(
        "spark/pyspark_weir/table/log.py", "if unknown:\n", "if len(unknown) > 9:\n",
        "tests/spark/table/test_table_features.py",
    ),
    "what is erased still counted": bug(
        _RANGES, "self.erased.get(key, 0) + one.rows", "self.erased.get(key, 0)",
        "tests/spark/test_erasure.py",
    ),
    "rows left out where null is compared": bug(
        _FILTERS, "None if None in values or not values", "None if not values", _PUSHDOWN,
    ),
    "the bound of a filter left out": bug(
        _FILTERS, "LessThanOrEqual: operator.le", "LessThanOrEqual: operator.lt",
        "tests/spark/test_archived_filters.py",
    ),
}  # fmt: skip
