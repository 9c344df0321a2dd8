"""Writes the synchronous client from the asynchronous one; a test holds the two together.

Knows: which names lose their `async`. Must never know: what a client does.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from unasync import Rule, unasync_files

ROOT: Final = Path(__file__).parent.parent
PACKAGE: Final = ROOT / "sdk/python/weir"
SOURCES: Final = "_async_client.py", "_async_sending.py"
NAMES: Final = {
    "AsyncBaseTransport": "BaseTransport",
    "AsyncClient": "Client",
    "AsyncGroup": "Group",
    "AsyncSender": "Sender",
    "_async_sending": "_sending",
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
    "How a call is sent with asyncio. `_sending.py` is generated from it: `make client`.": (
        "How a call is sent from a thread, generated from `_async_sending.py`: `make client`."
    ),
    "`async with AsyncClient(url)": "`with Client(url)",
    "`await client.": "`client.",
}


def generate() -> dict[Path, str]:
    """The texts of the synchronous modules, in the repository's style."""
    texts = {PACKAGE / name.replace("_async", ""): (PACKAGE / name).read_text() for name in SOURCES}
    for said in TEXTS:
        assert any(said in text for text in texts.values()), f"{SOURCES} no longer say {said!r}"
    return {target: _translate(text) for target, text in texts.items()}


def _translate(text: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "asynchronous/module.py")
        made.parent.mkdir()
        for said, instead in TEXTS.items():
            text = text.replace(said, instead)
        made.write_text(text)
        rule = Rule(f"{folder}/asynchronous/", f"{folder}/synchronous/", additional_replacements=NAMES)
        unasync_files([str(made)], [rule])
        text = Path(folder, "synchronous/module.py").read_text()
    ruff = str(Path(sys.executable).with_name("ruff"))
    # UP028: `yield from`, which coroutines have not.
    for words in (["check", "--fix", "--unsafe-fixes", "--select=I,UP028"], ["format"]):
        command = [ruff, *words, "--quiet", f"--stdin-filename={PACKAGE / 'module.py'}", "-"]
        done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, check=True)
        text = done.stdout
    return text


if __name__ == "__main__":
    for file, text in generate().items():
        file.write_text(text)
