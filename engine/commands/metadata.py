"""Values that the gateway keeps beside the streams: as durable as entries, and in every backup.

Knows: how much they may take. Must never know: what they mean.
"""

from typing import Final

from engine import errors
from engine.commands import weir_commands
from engine.commands.registry import runs
from engine.commands.turn import Turn
from engine.records import SetMetadata
from engine.replies import MetadataPage

# Names and values together: a rewrite writes all of them in one go.
METADATA_BYTES_MAX: Final = 4 << 20


@runs(weir_commands.PutMetadata)
def put_metadata(turn: Turn, command: weir_commands.PutMetadata) -> bool:
    metadata = turn.keyspace.metadata
    before = metadata.get(command.name)
    if command.value:
        others = sum(len(name) + len(value) for name, value in metadata.items() if name != command.name)
        if others + len(command.name) + len(command.value) > METADATA_BYTES_MAX:
            raise errors.too_much_metadata(METADATA_BYTES_MAX)
    if (command.value or None) != before:
        turn.emit(SetMetadata(command.name, command.value or b""))
    return before is not None


@runs(weir_commands.ListMetadata)
def list_metadata(turn: Turn, command: weir_commands.ListMetadata) -> MetadataPage:
    found = [item for item in turn.keyspace.metadata.items() if item[0].startswith(command.prefix)]
    return MetadataPage(sorted(found))
