"""The console's files: how they are served, and the rules that they follow.

Knows: headers, checksums, the type checker. Must never know: what the page does.
"""

import asyncio
import json
import re
import subprocess
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from app.auth import Action

ROOT = Path(__file__).parents[2]
CONSOLE = ROOT / "app" / "console"
FILES = sorted(file.relative_to(CONSOLE).as_posix() for file in CONSOLE.rglob("*") if file.is_file())
MODULES = [name for name in FILES if name.endswith(".js")]
# What the modules of each folder import besides their own neighbours. `main.js` puts all of it together.
MAY_IMPORT = {
    "shared": set[str](),
    "shell": {"shared"},
    "overview": {"shared", "schedules"},
    "schedules": {"shared"},
    "live": {"shared"},
    "groups": {"shared"},
    "stream": {"shared", "live", "groups", "schedules"},
}
TYPESCRIPT = ROOT / "tests" / "sdk" / "node_modules" / "typescript" / "bin" / "tsc"
LINES_MAX = 400
TYPES = {
    "": "text/html; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

NOT_FILES = [
    *("none.js", "VERSION", "LICENSE", "api.js", "shared", "shared/", "shared//api.js"),
    *("..%2Fmain.py", "shared/..%2F..%2Fmain.py", "shared/%2E%2E/main.js", "/shared/api.js"),
]
# What npm has under these versions, see VERSION beside them.
PUBLISHED = {
    "uPlot.esm.js": "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


@pytest.mark.parametrize("path", ["/console", *(f"/console/{name}" for name in FILES), "/console/uplot.js"])
async def test_a_file_is_revalidated(http: httpx.AsyncClient, path: str) -> None:
    """A strict policy, the right type, never a stale version, 304 for a current copy; HEAD as GET."""
    # A large file is compressed where the client accepts that, and then has no length.
    http.headers["accept-encoding"] = "identity"
    answer = await http.get(path)
    policy = answer.headers["content-security-policy"]
    assert answer.status_code == 200
    assert answer.headers["content-type"] == TYPES[Path(path).suffix]
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


@pytest.mark.parametrize("name", NOT_FILES)
async def test_nothing_else_is_served(http: httpx.AsyncClient, name: str) -> None:
    """A path that is not a file of the page is not found: folders, ways out of them, other names of files."""
    assert (await http.get(f"/console/{name}")).status_code in (400, 404)


@pytest.mark.parametrize(("name", "checksum"), PUBLISHED.items())
def test_the_vendored_library_is_as_published(name: str, checksum: str) -> None:
    """The vendored library is unchanged."""
    assert sha256((ROOT / "app" / "vendor" / "uplot" / name).read_bytes()).hexdigest() == checksum


def test_the_page_holds_no_code_and_no_style_of_its_own() -> None:
    """Code and style come from files of this host alone, so that the policy can forbid the rest."""
    text = (CONSOLE / "index.html").read_text()
    assert re.findall(r"<script[^>]*>([^<]*)</script>", text) == [""]
    assert not re.search(r"<style| style=| on[a-z]+=", text)
    named = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert named
    assert all(place.startswith("/console") for place in named)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_says_what_it_knows_and_makes_no_markup(name: str) -> None:
    """Short, with a header, and without any of the ways from a string to an element or to code."""
    text = (CONSOLE / name).read_text()
    assert text.startswith("/*\n")
    head = text.partition("*/")[0]
    assert "Knows:" in head
    assert "Must never know:" in head
    assert text.count("\n") < LINES_MAX
    sinks = (
        r"\.innerHTML|\.outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function|srcdoc ="
    )
    assert not re.search(sinks, text)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_its_neighbours_and_what_is_shared(name: str) -> None:
    """A view can be read, and changed, without the others."""
    text = (CONSOLE / name).read_text()
    imported = set(re.findall(r'(?:from|import) ?\(?"([^"]*)"', text)) - {"/console/uplot.js"}
    assert all(path.startswith(("./", "../")) and path.endswith(".js") for path in imported)
    own = (CONSOLE / name).parent
    folders = {(own / path).resolve().relative_to(CONSOLE).parent.as_posix() for path in imported}
    if name != "main.js":
        assert folders - {own.name} <= MAY_IMPORT[own.name]


def test_every_module_is_used() -> None:
    """Each is reached from the page's one script."""
    reached, waiting = set[Path](), [CONSOLE / "main.js"]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            named = re.findall(r'^(?:import|\}) .*from "(\.[^"]*)"', module.read_text(), re.MULTILINE)
            waiting += [(module.parent / path).resolve() for path in named]
    assert reached == {CONSOLE / name for name in MODULES}


async def test_the_types_of_the_modules_hold() -> None:
    """TypeScript finds no error in the modules, by their JSDoc types."""
    command = ("node", str(TYPESCRIPT), "-p", str(ROOT / "tests" / "console" / "tsconfig.json"))
    found = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")


def test_each_action_that_a_control_needs_hides_it() -> None:
    """The page knows all actions of grants, and the style sheet has a line for each that is named."""
    sources = [(CONSOLE / name).read_text() for name in MODULES]
    needed = {action for source in sources for action in re.findall(r'"data-needs": "(\w+)"', source)}
    hidden = re.findall(
        r'\[data-denied~="(\w+)"\] \[data-needs="(\w+)"\]', (CONSOLE / "console.css").read_text()
    )
    (known,) = re.findall(
        r"^const ACTIONS = (.*);$", (CONSOLE / "shell" / "login.js").read_text(), re.MULTILINE
    )
    assert (
        {one for pair in hidden for one in pair} == {one for one, other in hidden if one == other} == needed
    )
    # Who may pass a grant on gets no control for it.
    assert set(json.loads(known)) == {action.value for action in Action} - {"issue"}
