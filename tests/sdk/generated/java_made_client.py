"""What a user of a Python client made by openapi-generator does; the gateway's URL is the argument.

Knows: the generated package, `weir_api`, by the operations' names. Must never know: paths, headers, JSON.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from weir_api import (
    Acknowledgement,
    ApiClient,
    Configuration,
    EnsuredGroup,
    EntriesApi,
    EntriesInput,
    EntryInput,
    EntryInputFieldsValue,
    GroupReading,
    GroupsApi,
)
from weir_api.exceptions import ConflictException

STREAM = "java/orders eu"
GROUP = "billing"


def entry(number: int, entry_id: str = "*") -> EntryInput:
    """An entry with one number, of which the gateway keeps the text."""
    fields = {"item": EntryInputFieldsValue("äpfel"), "number": EntryInputFieldsValue(number)}
    return EntryInput(fields=fields, id=entry_id)


def publishes(entries: EntriesApi) -> str:
    """One entry, then a batch; answers the last ID."""
    assert entries.add_entries(STREAM, entry(1)).id
    rows = [EntryInput(fields={"number": EntryInputFieldsValue(number)}) for number in (2, 3)]
    batch = entries.add_entry_batch(STREAM, EntriesInput(entries=rows))
    assert (batch.count, len(batch.ids)) == (2, 2)
    last_id: str = batch.last_id
    return last_id


def waits(entries: EntriesApi, last_id: str) -> None:
    """A read that waits is answered by a publish."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(entries.read_entries, STREAM, after=last_id, wait=20_000)
        time.sleep(0.3)
        assert not waiting.done(), "there was nothing to read yet"
        added = entries.add_entries(STREAM, entry(4))
        page = waiting.result()
    assert [found.id for found in page.entries] == [added.id]
    assert page.entries[0].fields == {"item": "äpfel", "number": "4"}
    assert page.next == added.id


def works(groups: GroupsApi) -> None:
    """A group's consumer reads, sees what it holds, acknowledges."""
    groups.ensure_group(STREAM, GROUP, ensured_group=EnsuredGroup(start="0"))
    for expected in (3, 1):
        found = groups.read_group(STREAM, GROUP, "worker 1", group_reading=GroupReading(count=3)).entries
        held = groups.read_group(STREAM, GROUP, "worker 1", group_reading=GroupReading(after="0")).entries
        assert [one.id for one in held] == [one.id for one in found]
        done = groups.ack_entries(STREAM, GROUP, Acknowledgement(ids=[one.id for one in found]))
        assert done.acknowledged == expected
    assert groups.list_pending(STREAM, GROUP).count == 0


def is_refused(entries: EntriesApi) -> None:
    """A refusal is a problem with its code and its status."""
    problem = None
    try:
        entries.add_entries(STREAM, entry(0, "1-1"))
    except ConflictException as refused:
        problem = refused.data
    assert problem is not None, "an ID that does not increase was taken"
    assert (problem.status, problem.code, problem.retryable) == (409, "id_not_increasing", False)


def main(url: str) -> None:
    """All of it, with one client."""
    with ApiClient(Configuration(host=url)) as client:
        entries, groups = EntriesApi(client), GroupsApi(client)
        waits(entries, publishes(entries))
        works(groups)
        is_refused(entries)


main(sys.argv[1])
sys.stdout.write("all agree\n")
