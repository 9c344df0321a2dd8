"""What a gateway knows that older ones refuse: it says so at `/v1`, in `features`.

Knows: the words for it, and how one that does not know it refuses. Must never know: how a call is sent.
"""

from typing import Final

from weir.errors import ApiError

# What is done, is given back, or is to be a dead letter, names the consumer who holds it.
ACK_CONSUMER: Final = "ack_consumer"
NACK_CONSUMER: Final = "nack_consumer"
DEAD_LETTER_CONSUMER: Final = "dead_letter_consumer"
_MALFORMED: Final = 422


def refuses_consumer(error: ApiError) -> bool:
    """Whether a gateway does not know the member `consumer`."""
    places = error.problem.get("errors")
    return error.status == _MALFORMED and any(
        isinstance(one, dict) and one.get("pointer") == "/consumer"
        for one in (places if isinstance(places, list) else ())
    )
