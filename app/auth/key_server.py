"""The server that publishes the keys of JWTs, over HTTPS.

Knows: how long and how much to read from it. Must never know: what keys are for.
"""

from typing import Final

import httpx

from app.auth.jwt import KEYS_BYTES_MAX, Fetch, KeysError

_TIMEOUT_S: Final = 5.0


def fetch_from(url: str) -> Fetch:
    """What fetches the key set at `url`: at most `KEYS_BYTES_MAX` bytes, within 5 s, without redirects.

    It raises KeysError.
    """

    async def fetch() -> bytes:
        text = bytearray()
        try:
            async with (
                httpx.AsyncClient(timeout=_TIMEOUT_S, follow_redirects=False, trust_env=False) as client,
                client.stream("GET", url, headers={"accept": "application/json"}) as response,
            ):
                if response.status_code != httpx.codes.OK:
                    raise KeysError(f"{url} answers {response.status_code}")
                async for piece in response.aiter_bytes():
                    text += piece
                    if len(text) > KEYS_BYTES_MAX:
                        raise KeysError(f"{url} answers more than {KEYS_BYTES_MAX} bytes")
        except httpx.HTTPError as error:
            raise KeysError(f"{url}: {str(error) or type(error).__name__}") from None
        return bytes(text)

    return fetch
