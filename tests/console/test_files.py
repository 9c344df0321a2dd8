"""The console's files: how they are served, and that they are what they should be.

Knows: headers, checksums, the type checker. Must never know: what the page does.
"""

import asyncio
import re
import subprocess
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
CONSOLE = ROOT / "app" / "console"
FILES = sorted(file.name for file in CONSOLE.iterdir())
TYPESCRIPT = ROOT / "tests" / "sdk" / "node_modules" / "typescript" / "bin" / "tsc"
lines_max = 400

# What npm has under these versions, see VERSION beside them.
PUBLISHED = {
    "uPlot.esm.js": "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


@pytest.mark.parametrize("path", ["/console", *(f"/console/{name}" for name in FILES), "/console/uplot.js"])
async def test_a_file_is_kept_and_asked_about(http: httpx.AsyncClient, path: str) -> None:
    """A strict policy on each, never a stale version, 304 for who has it already; HEAD as GET."""
    # A large one is compressed for who accepts that, and then has no length.
    http.headers["accept-encoding"] = "identity"
    answer = await http.get(path)
    policy = answer.headers["content-security-policy"]
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert {"default-src 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"} <= set(
        policy.split("; ")
    )
    assert "unsafe" not in policy
    head = await http.head(path)
    same = ("content-length", "content-type", "etag", "content-security-policy")
    assert (head.status_code, head.content) == (200, b"")
    assert [head.headers[name] for name in same] == [answer.headers[name] for name in same]
    again = await http.get(path, headers={"if-none-match": f'"other", W/{answer.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == answer.headers["etag"]
    assert again.headers["content-type"] == answer.headers["content-type"]
    assert "content-length" not in again.headers
    assert "content-security-policy" in again.headers


@pytest.mark.parametrize("name", ["none.js", "..%2Fmain.py", "VERSION", "LICENSE"])
async def test_nothing_else_is_served(http: httpx.AsyncClient, name: str) -> None:
    """A name that is no file of the page finds nothing, whatever it holds."""
    assert (await http.get(f"/console/{name}")).status_code in (400, 404)


@pytest.mark.parametrize(("name", "checksum"), PUBLISHED.items())
def test_what_is_vendored_is_as_published(name: str, checksum: str) -> None:
    """Nobody has touched the library."""
    assert sha256((ROOT / "app" / "vendor" / "uplot" / name).read_bytes()).hexdigest() == checksum


def test_the_page_holds_no_code_and_no_style_of_its_own() -> None:
    """Both stand in files alone, so that the policy can forbid the rest; and nothing comes from elsewhere."""
    text = (CONSOLE / "index.html").read_text()
    assert re.findall(r"<script[^>]*>([^<]*)</script>", text) == [""]
    assert not re.search(r"<style| style=| on[a-z]+=", text)
    named = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert named
    assert all(place.startswith("/console") for place in named)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_a_module_says_what_it_knows_and_makes_no_markup(name: str) -> None:
    """Short, with a head, and without any of the ways from a string to an element or to code."""
    text = (CONSOLE / name).read_text()
    assert text.startswith("/*\n")
    head = text.partition("*/")[0]
    assert "Knows:" in head
    assert "Must never know:" in head
    assert text.count("\n") < lines_max
    sinks = (
        r"\.innerHTML|\.outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function|srcdoc ="
    )
    assert not re.search(sinks, text)
    assert all(place.startswith(("./", "/console/")) for place in re.findall(r'from "([^"]*)"', text))


async def test_the_types_of_the_modules_hold() -> None:
    """What the comments say of types, TypeScript believes."""
    command = ("node", str(TYPESCRIPT), "-p", str(ROOT / "tests" / "console" / "tsconfig.json"))
    found = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")
