"""What a user of a client made by openapi-python-client does; the gateway's URL is the argument.

Knows: the generated package, `weir_client`, by the operations' names. Must never know: paths, headers, JSON.
"""

import asyncio
import sys

from weir_client import Client
from weir_client.api.entries import add_entries, add_entry_batch, read_entries
from weir_client.api.groups import ack_entries, ensure_group, list_pending, read_group
from weir_client.api.many import publish
from weir_client.models import (
    Acknowledged,
    Acknowledgement,
    Added,
    Deliveries,
    EnsuredGroup,
    EntriesInput,
    EntryInput,
    EntryInputFields,
    GroupReading,
    ManyPublish,
    ManyPublished,
    ManyPublishStreams,
    Page,
    PendingView,
    PlainEntryInput,
    Problem,
    ProblemCode,
)

STREAM = "python/orders eu"
GROUP = "billing"


def entry(number: int, entry_id: str = "*") -> EntryInput:
    """An entry with a number and a boolean, of which the gateway keeps the text."""
    fields = EntryInputFields()
    fields.additional_properties = {"item": "äpfel", "number": number, "ripe": True}
    return EntryInput(fields=fields, id=entry_id)


def for_now(number: int) -> PlainEntryInput:
    """The same where no entry can be for later."""
    return PlainEntryInput.from_dict(entry(number).to_dict())


async def publishes(client: Client) -> str:
    """One entry, then a batch, then into another stream as well; answers the last ID."""
    one = await add_entries.asyncio(STREAM, client=client, body=entry(1))
    assert isinstance(one, Added), one
    assert isinstance(one.id, str)
    rows = EntriesInput(entries=[entry(2), entry(3)])
    batch = await add_entry_batch.asyncio(STREAM, client=client, body=rows)
    assert isinstance(batch, Added), batch
    assert isinstance(batch.ids, list)
    assert (batch.count, len(batch.ids), batch.first_id) == (2, 2, batch.ids[0])
    streams = ManyPublishStreams()
    streams.additional_properties = {"python other": [for_now(1)], STREAM: [for_now(4)]}
    many = await publish.asyncio(client=client, body=ManyPublish(streams=streams))
    assert isinstance(many, ManyPublished), many
    last_id: str = many.streams[STREAM].last_id
    return last_id


async def waits(client: Client, last_id: str) -> None:
    """A read that waits is answered by a publish."""
    waiting = asyncio.create_task(read_entries.asyncio(STREAM, client=client, after=last_id, wait=20_000))
    await asyncio.sleep(0.3)
    assert not waiting.done(), "there was nothing to read yet"
    added = await add_entries.asyncio(STREAM, client=client, body=entry(5))
    assert isinstance(added, Added), added
    page = await waiting
    assert isinstance(page, Page), page
    assert [found.id for found in page.entries] == [added.id]
    assert page.entries[0].fields.additional_properties == {
        "item": "äpfel",
        "number": "5",
        "ripe": "true",
    }
    assert page.next_ == added.id


async def works(client: Client) -> None:
    """A group's consumer reads, sees what it holds, acknowledges."""
    made = await ensure_group.asyncio(STREAM, GROUP, client=client, body=EnsuredGroup(start="0"))
    assert not isinstance(made, Problem), made
    for expected in (3, 2, 0):
        found = await read_group.asyncio(STREAM, GROUP, "worker 1", client=client, body=GroupReading(count=3))
        assert isinstance(found, Deliveries), found
        assert len(found.entries) == expected
        if not found.entries:
            break
        held = await read_group.asyncio(
            STREAM, GROUP, "worker 1", client=client, body=GroupReading(after="0")
        )
        assert isinstance(held, Deliveries), held
        assert [one.id for one in held.entries] == [one.id for one in found.entries]
        wanted = Acknowledgement(ids=[one.id for one in found.entries])
        done = await ack_entries.asyncio(STREAM, GROUP, client=client, body=wanted)
        assert isinstance(done, Acknowledged), done
        assert done.acknowledged == expected
    pending = await list_pending.asyncio(STREAM, GROUP, client=client)
    assert isinstance(pending, PendingView), pending
    assert pending.count == 0


async def is_refused(client: Client) -> None:
    """A refusal is a problem with its code and its status."""
    refused = await add_entries.asyncio_detailed(STREAM, client=client, body=entry(0, "1-1"))
    problem = refused.parsed
    assert isinstance(problem, Problem), problem
    assert (refused.status_code, problem.status) == (409, 409)
    assert problem.code is ProblemCode.ID_NOT_INCREASING
    assert not problem.retryable


async def main(url: str) -> None:
    """All of it, with one client."""
    async with Client(base_url=url, raise_on_unexpected_status=True) as client:
        await waits(client, await publishes(client))
        await works(client)
        await is_refused(client)


asyncio.run(main(sys.argv[1]))
sys.stdout.write("all agree\n")
