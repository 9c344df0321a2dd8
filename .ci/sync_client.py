"""Writes the synchronous client, `_client.py`, from the asynchronous one; a test holds the two together.

Knows: which names lose their `async`. Must never know: what a client does.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from unasync import Rule, unasync_files

ROOT: Final = Path(__file__).parent.parent
SOURCE: Final = ROOT / "sdk/python/weir/_async_client.py"
TARGET: Final = SOURCE.with_name("_client.py")
NAMES: Final = {
    "AsyncBaseTransport": "BaseTransport",
    "AsyncClient": "Client",
    "AsyncGroup": "Group",
    "aclose": "close",
    "aiter_raw": "iter_raw",
    "aread": "read",
    "asyncio": "time",
}
# What is said rather than done.
TEXTS: Final = {
    "The asynchronous client. `_client.py` is generated from it: `make client`.": (
        "The synchronous client, generated from `_async_client.py`: `make client`."
    ),
    "how a call is sent with asyncio": "how a call is sent from a thread",
    "`async with AsyncClient(url)": "`with Client(url)",
    "`await client.": "`client.",
}


def generate() -> str:
    """The text of `_client.py`, in the repository's style."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "asynchronous/_client.py")
        made.parent.mkdir()
        text = SOURCE.read_text()
        for said, instead in TEXTS.items():
            assert said in text, f"{SOURCE.name} no longer says {said!r}"
            text = text.replace(said, instead)
        made.write_text(text)
        rule = Rule(f"{folder}/asynchronous/", f"{folder}/synchronous/", additional_replacements=NAMES)
        unasync_files([str(made)], [rule])
        text = Path(folder, "synchronous/_client.py").read_text()
    ruff = str(Path(sys.executable).with_name("ruff"))
    # UP028: `yield from`, which coroutines have not.
    for words in (["check", "--fix", "--unsafe-fixes", "--select=I,UP028"], ["format"]):
        command = [ruff, *words, "--quiet", f"--stdin-filename={TARGET}", "-"]
        done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, check=True)
        text = done.stdout
    return text


if __name__ == "__main__":
    TARGET.write_text(generate())
