"""The server that publishes the keys of JWTs, over HTTPS.

Knows: how long and how much to read from it. Must never know: what keys are for.
"""

import asyncio
import ssl
from typing import Final

import httpx

from app.auth.jwt import KEYS_BYTES_MAX, Fetch, KeysError

TIMEOUT_S: Final = 5.0
# No coding: a few kilobytes that are compressed may be gigabytes.
_HEADERS: Final = {"accept": "application/json", "accept-encoding": "identity"}


def fetch_from(url: str, timeout_s: float = TIMEOUT_S) -> Fetch:
    """What fetches the key set at `url`: at most `KEYS_BYTES_MAX` bytes, within the time, without redirects.

    It raises KeysError.
    """
    # Reading the certificates takes 20 ms, too long for the event loop: any unknown key ID causes it.
    trusted = httpx.create_ssl_context(trust_env=False)

    async def fetch() -> bytes:
        try:
            # httpx's own timeout is for each piece.
            async with asyncio.timeout(timeout_s):
                return await _read(url, timeout_s, trusted)
        except TimeoutError:
            raise KeysError(f"{url} does not answer within {timeout_s:g} s") from None
        except httpx.HTTPError as error:
            raise KeysError(f"{url}: {str(error) or type(error).__name__}") from None

    return fetch


async def _read(url: str, timeout_s: float, trusted: ssl.SSLContext) -> bytes:
    text = bytearray()
    async with (
        httpx.AsyncClient(
            verify=trusted, timeout=timeout_s, follow_redirects=False, trust_env=False
        ) as client,
        client.stream("GET", url, headers=_HEADERS) as response,
    ):
        if response.status_code != httpx.codes.OK:
            raise KeysError(f"{url} answers {response.status_code}")
        coding = response.headers.get("content-encoding", "identity")
        if coding != "identity":
            raise KeysError(f"{url} answers in the coding {coding!r}, though it was asked for none")
        async for piece in response.aiter_raw():
            text += piece
            if len(text) > KEYS_BYTES_MAX:
                raise KeysError(f"{url} answers more than {KEYS_BYTES_MAX} bytes")
    return bytes(text)
