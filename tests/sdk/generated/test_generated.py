"""Clients that public generators make from the description of a running gateway work.

Knows: how each generator is called. Must never know: what generated code is like; the drivers beside it do.
"""

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import httpx
import msgspec
import openapi_spec_validator
import pytest

from tests.documents.programs import programs
from tests.proof.machine import needs
from tests.server import Server, server_of

HERE = Path(__file__).parent
NODE_MODULES = HERE.parent / "node_modules"
# The generators' own requirements clash with ours: they have an environment of their own, see the Makefile.
TOOLS = Path(sys.executable).parent.parent / "tools" / "bin"


server = server_of("module")


@pytest.fixture(scope="module")
def document(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The description as the gateway serves it."""
    file = tmp_path_factory.mktemp("description") / "openapi.json"
    file.write_bytes(httpx.get(f"{server.url}/openapi.json").raise_for_status().content)
    return file


def _run(place: Path, *command: object, status: int = 0, **environment: str) -> str:
    """What the program said; it ends so, or the test fails with all of it."""
    ran = subprocess.run(
        list(map(str, command)),
        cwd=place,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == status, ran.stdout
    return ran.stdout


def _agrees(said: str) -> None:
    assert said.splitlines()[-1:] == ["all agree"], said


def test_the_description_is_openapi(document: Path) -> None:
    """It validates as OpenAPI 3.1, examples and defaults included."""
    openapi_spec_validator.validate(msgspec.json.decode(document.read_bytes()))


def test_the_description_has_no_lint(document: Path) -> None:
    """Redocly's strict rules and Spectral's rules for OpenAPI find nothing."""
    lint = document.with_name("lint.mjs")
    lint.write_bytes((HERE / "lint.mjs").read_bytes())
    (document.parent / "node_modules").symlink_to(NODE_MODULES)
    assert _run(document.parent, "node", lint, document) == ""


def test_a_python_client_works(server: Server, document: Path, tmp_path: Path) -> None:
    """Made by openapi-python-client: nothing of the API is left out, mypy is content, the driver agrees."""
    (tmp_path / "config.yaml").write_text("post_hooks: []\n")
    generator = [TOOLS / "openapi-python-client", "generate", "--config", "config.yaml", "--meta", "none"]
    said = _run(tmp_path, *generator, "--path", document, "--output-path", "weir_client")
    # This generator has no shape for lines of JSON: an operation of their own to publish, and the export.
    assert (
        said.count("WARNING") == len(re.findall(r"Unsupported content.type application/x-ndjson", said)) == 2
    )
    (tmp_path / "py.typed").touch()
    driver = HERE / "python_client.py"
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", TOOLS / "python"]
    _run(tmp_path, *mypy, "--cache-dir", tmp_path / "cache", driver, MYPYPATH=str(tmp_path))
    _agrees(_run(tmp_path, TOOLS / "python", driver, server.url, PYTHONPATH=str(tmp_path)))


def test_a_typescript_client_works(server: Server, document: Path, tmp_path: Path) -> None:
    """Made by @hey-api/openapi-ts: tsc --strict is content, the driver agrees."""
    commands = NODE_MODULES / ".bin"
    plugins = ("@hey-api/client-fetch", "@hey-api/typescript", "@hey-api/sdk")
    _run(tmp_path, commands / "openapi-ts", "-i", document, "-o", tmp_path / "weir", "-p", *plugins)
    (tmp_path / "client.ts").write_bytes((HERE / "client.ts").read_bytes())
    options = ["--strict", "--target", "es2022", "--lib", "es2022,dom,dom.iterable"]
    modules = ["--module", "commonjs", "--moduleResolution", "node10"]
    _run(tmp_path, commands / "tsc", *options, *modules, "client.ts")
    _agrees(_run(tmp_path, "node", "client.js", server.url))


def test_a_worker_of_openapi_fetch_works(server: Server, document: Path, tmp_path: Path) -> None:
    """Typed by openapi-typescript: tsc --strict is content with a worker on openapi-fetch, which agrees."""
    generator = NODE_MODULES / ".bin" / "openapi-typescript"
    _run(tmp_path, generator, document, "--output", "weir.d.ts")
    _compile(tmp_path, "worker.ts")
    _agrees(_run(tmp_path, "node", "worker.js", server.url))


GO_PAGE = HERE.parents[2] / "docs" / "generated-clients.md"


@needs(lambda: None if shutil.which("go") else "needs go")
def test_a_client_in_go_works(server: Server, document: Path, tmp_path: Path) -> None:
    """The commands and the program of docs/generated-clients.md: made, vetted, compiled without any package
    but Go's own, and run; what it prints is what the page says.
    """
    page = GO_PAGE.read_text(encoding="utf-8")
    (tmp_path / "main.go").write_text(programs(page)["main.go"])
    (tmp_path / "openapi.json").write_bytes(document.read_bytes())
    generate, *_ = re.findall(r"^openapi-generator-cli ((?:.*\\\n)*.*)", page, re.MULTILINE)
    _run(tmp_path, TOOLS / "openapi-generator-cli", *generate.replace("\\\n", "").split())
    go = partial(_run, tmp_path, "go", GOPROXY="off", GOFLAGS="-mod=mod", GOTOOLCHAIN="local")
    assert _run(tmp_path, "gofmt", "-l", "main.go") == ""
    go("mod", "init", "orders")
    go("vet", "./...")
    said = go("run", ".", server.url)
    assert f"```text\n{said}```" in page
    group = httpx.get(f"{server.url}/v1/streams/shop%2Forders/groups/billing").json()
    assert (group["pending"], group["lag"]) == (0, 0)
    # A refusal is said with its code.
    assert "no_route: " in go("run", ".", f"{server.url}/v1", status=1)


# Beside what generated files need.
STRICT = ["--strict", "--target", "es2022", "--lib", "es2022,dom,dom.iterable", "--module", "nodenext"]
ORVAL = """
export default {{ weir: {{ input: {!r}, output: {{
    target: "weir.ts", client: "fetch", baseUrl: {!r}, urlEncodeParameters: true,
}} }} }}
"""


def _compile(place: Path, worker: str) -> None:
    """The worker as JavaScript, beside the generated client."""
    (place / "node_modules").symlink_to(NODE_MODULES)
    (place / "package.json").write_text('{"type": "module"}')
    (place / worker).write_bytes((HERE / worker).read_bytes())
    _run(place, NODE_MODULES / ".bin" / "tsc", *STRICT, worker)


def _needs_node(major: int) -> None:
    found = subprocess.run(["node", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    if int(found[1:].partition(".")[0]) < major:
        pytest.skip(f"this generator needs Node {major}, and here is {found.strip()}")


@pytest.mark.parametrize("generator", ["orval7/dist/bin/orval.js", "orval/dist/bin/orval.mjs"])
def test_a_client_of_orval_works(server: Server, document: Path, tmp_path: Path, generator: str) -> None:
    """Made by orval 7 and 8: tsc --strict is content with all of it and with a worker, which agrees."""
    _needs_node(18 if generator.startswith("orval7") else 20)
    (tmp_path / "orval.config.mjs").write_text(ORVAL.format(str(document), server.url))
    _run(tmp_path, "node", NODE_MODULES / generator, "--config", "orval.config.mjs")
    _compile(tmp_path, "orval.ts")
    _agrees(_run(tmp_path, "node", "orval.js", f"{generator.partition('/')[0]}/orders eu"))


def test_a_client_of_swagger_typescript_api_works(server: Server, document: Path, tmp_path: Path) -> None:
    """Made by swagger-typescript-api: tsc --strict is content with a worker, which agrees."""
    _needs_node(20)
    generator = NODE_MODULES / ".bin" / "swagger-typescript-api"
    _run(tmp_path, generator, "generate", "--path", document, "--output", tmp_path, "--name", "weir.ts")
    _compile(tmp_path, "swagger.ts")
    _agrees(_run(tmp_path, "node", "swagger.js", server.url))


def test_a_client_of_openapi_generator_works(server: Server, document: Path, tmp_path: Path) -> None:
    """Made by openapi-generator on the Java runtime that is installed with it: the driver agrees."""
    generator = [TOOLS / "openapi-generator-cli", "generate", "--generator-name", "python"]
    options = ["--package-name", "weir_api", "--input-spec", document, "--output", tmp_path]
    _run(tmp_path, *generator, *options, "--global-property", "apis,models,supportingFiles")
    driver = HERE / "java_made_client.py"
    _agrees(_run(tmp_path, TOOLS / "python", driver, server.url, PYTHONPATH=str(tmp_path)))


def _make(place: Path, document: Path, generator: str, output: str) -> None:
    """A client of openapi-generator."""
    command = [TOOLS / "openapi-generator-cli", "generate", "-g", generator, "-i", document, "-o", output]
    _run(place, *command, "--global-property", "apis,models,supportingFiles")


def test_a_client_of_typescript_fetch_works(server: Server, document: Path, tmp_path: Path) -> None:
    """The compiler is content with a worker under --strict, and the worker agrees."""
    _make(tmp_path, document, "typescript-fetch", "weir")
    # It imports its own files without their endings, as bundlers take them.
    for file in (tmp_path / "weir").rglob("*.ts"):
        text = re.sub(r"(from '\.[^']*?)(?<!\.js)'", r"\1.js'", file.read_text(encoding="utf-8"))
        file.write_text(text, encoding="utf-8")
    _compile(tmp_path, "fetch.ts")
    _agrees(_run(tmp_path, "node", "fetch.js", server.url))


def test_a_client_in_rust_can_publish(document: Path, tmp_path: Path) -> None:
    """What is made takes an entry, a batch and, with a line of the page, values. It compiles with crates."""
    _make(tmp_path, document, "rust", "weir")
    calls = (tmp_path / "weir/src/apis/entries_api.rs").read_text(encoding="utf-8")
    for call, body in (
        ("add_entries", "entry_input: models::EntryInput"),
        ("add_entry_batch", "entries_input: models::EntriesInput"),
    ):
        (taken,) = re.findall(rf"pub async fn {call}\((.*?)\) ->", calls)
        assert body in taken.split(", ")
    entry = (tmp_path / "weir/src/models/entry_input.rs").read_text(encoding="utf-8")
    assert "pub fields: std::collections::HashMap<String, models::EntryInputFieldsValue>," in entry
    (line,) = re.findall(r"^echo '.*' > weir/src/.*$", GO_PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    _run(tmp_path, "sh", "-c", line)
    assert "serde_json" in (tmp_path / "weir/Cargo.toml").read_text(encoding="utf-8")
    if shutil.which("cargo") and _has_crates():
        _run(tmp_path / "weir", "cargo", "check", "--offline")


def _has_crates() -> bool:
    return any((Path.home() / ".cargo/registry").glob("cache/*/reqwest-*"))
