"""The TypeScript client: compiled strictly, then used from Node and from a page in Chromium."""

import json
import os
import re
import subprocess
import sys
import threading
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.browsing import open_page, serve_site
from tests.cluster.clusters import server_words
from tests.cluster.servers import BackendServer
from tests.history.room import STREAM, Room
from tests.server import Server
from tests.waiting import completed

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PACKAGE = ROOT / "sdk" / "typescript"
MODULES = ROOT / "tests" / "sdk" / "node_modules"
NODE_S_MAX = 180
IMPORTED = re.compile(r'from "(\.[^"]+)"').findall


def tsc(*arguments: str) -> None:
    """Compile; the compiler's errors are the assertion's text."""
    ended = completed(["node", str(MODULES / ".bin" / "tsc"), *arguments])
    assert ended.returncode == 0, ended.stdout


@pytest.fixture(scope="session")
def client_module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package compiled from its sources."""
    built = tmp_path_factory.mktemp("weir-client") / "dist"
    tsc("-p", str(PACKAGE), "--outDir", str(built))
    return built / "index.js"


def environment(server: Server, client_module: Path, **more: str) -> dict[str, str]:
    web_socket = (MODULES / "ws" / "wrapper.mjs").as_uri()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    return (
        kept | {"WEIR_URL": server.url, "WEIR_CLIENT": client_module.as_uri(), "WEIR_WS": web_socket} | more
    )


def test_one_cursor_goes_from_the_archive_into_the_stream(client_module: Path, tmp_path: Path) -> None:
    """By pages and by a tail; a cursor below what the archive begins with gets the gap."""
    room = Room(tmp_path)
    try:
        early, *all_ids = room.publish(*"x-0123456789")
        trimmed = room.http.post(f"/v1/streams/{STREAM}/trim", json={"minid": all_ids[1]})
        assert trimmed.json()["deleted"] == 2
        all_ids = all_ids[1:]
        room.archiver.run(STREAM)
        assert room.archiver.trim() == 10
        room.served.start()
        all_ids += room.publish(*"abc")
        ended = completed(
            ["node", str(HERE / "archived.mjs")],
            env=environment(room.gateway, client_module, WEIR_COUNT=str(len(all_ids)), WEIR_EARLY=early),
            timeout=NODE_S_MAX,
        )
    finally:
        room.close()
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        "paged": all_ids,
        "tailed": all_ids,
        "gaps": [[early, all_ids[0]], [early, all_ids[0]]],
    }


def test_no_module_leads_back_to_itself() -> None:
    """Imports of types count too."""
    sources = PACKAGE / "src"
    TopologicalSorter(
        {
            file: {(file.parent / name).resolve().with_suffix(".ts") for name in IMPORTED(file.read_text())}
            for file in sources.rglob("*.ts")
        }
    ).prepare()


def test_strict_programs_compile_against_its_types(client_module: Path, tmp_path: Path) -> None:
    config = {
        "extends": str(PACKAGE / "tsconfig.json"),
        "compilerOptions": {
            "noEmit": True,
            "rootDir": "/",
            "paths": {"weir-client": [str(client_module.with_name("index.d.ts"))]},
        },
        "include": [str(HERE / "usage.ts")],
    }
    (tmp_path / "tsconfig.json").write_text(json.dumps(config))
    tsc("-p", str(tmp_path / "tsconfig.json"))


def test_its_types_are_those_of_the_documents(tmp_path: Path) -> None:
    """`make typescript` would change nothing."""
    subprocess.run([sys.executable, ROOT / ".ci" / "typescript_types.py", tmp_path], check=True)
    for made in tmp_path.iterdir():
        assert made.read_text() == (PACKAGE / "src" / "documents" / made.name).read_text(), made.name
    assert {made.name for made in tmp_path.iterdir()} == {"openapi.ts", "asyncapi.ts"}


def test_it_has_no_dependencies() -> None:
    package = json.loads((PACKAGE / "package.json").read_text())
    assert "dependencies" not in package
    # Compiled here by the compiler that the tests' own lock names.
    tests = json.loads((ROOT / "tests" / "sdk" / "package.json").read_text())
    assert package["devDependencies"]["typescript"] == tests["dependencies"]["typescript"]


def run_tests(program: str, client_module: Path, data: Path) -> None:
    """Tests in JavaScript, beside a gateway; their report is the assertion's text."""
    with Server(data) as server:
        ended = completed(
            ["node", "--test", "--test-reporter=tap", str(HERE / program)],
            env=environment(server, client_module),
            timeout=NODE_S_MAX,
        )
    assert ended.returncode == 0, ended.stdout


def test_in_node_it_publishes_reads_tails_and_works(client_module: Path, tmp_path: Path) -> None:
    run_tests("client.test.mjs", client_module, tmp_path / "data")


def test_in_node_it_keeps_answers_that_are_resumed(client_module: Path, tmp_path: Path) -> None:
    run_tests("resumable.test.mjs", client_module, tmp_path / "data")


@pytest.mark.parametrize("via", ["websocket", "long-poll"])
def test_in_node_a_worker_and_a_tail_outlive_kills_of_the_gateway(
    client_module: Path, tmp_path: Path, via: Literal["websocket", "long-poll"]
) -> None:
    with Server(tmp_path / "data") as server:
        program = subprocess.Popen(
            ["node", str(HERE / "outliving.mjs")],
            env=environment(server, client_module, WEIR_VIA=via),
            stdout=subprocess.PIPE,
            text=True,
        )
        ends = threading.Timer(NODE_S_MAX, program.kill)
        ends.start()
        found: dict[str, Any] = {}
        assert program.stdout is not None
        for line in program.stdout:
            if line == "kill\n":
                server.restart()
            else:
                found = json.loads(line)
        ends.cancel()
        program.stdout.close()
        assert program.wait() == 0
    assert found["tailed"] == list(range(150))
    assert sorted(found["done"]) == list(range(150)), "one life of a worker does nothing twice"
    assert found["pending"] == 0


def test_ends_and_backoffs_are_the_same_over_a_backend(client_module: Path, tmp_path: Path) -> None:
    names = "a tail ends with its stream|once its group is drained|comes back after its backoff"
    with BackendServer(tmp_path) as backend, Server(tmp_path / "data", *server_words(backend)) as server:
        ended = completed(
            [
                "node",
                "--test",
                f"--test-name-pattern={names}",
                "--test-reporter=tap",
                str(HERE / "client.test.mjs"),
            ],
            env=environment(server, client_module),
            timeout=NODE_S_MAX,
        )
    assert ended.returncode == 0, ended.stdout
    assert "# pass 5" in ended.stdout


IN_A_PAGE = """
async ([site, url]) => {
    const { Client, Worker } = await import(`${site}/index.js`);
    const client = new Client({ url });
    await client.publishBatch("page", [{ n: 0 }, { n: 1 }, { n: 2 }]);
    const tailed = [], done = [];
    for await (const entry of client.tail("page", { after: "0" })) {
        if (tailed.push(entry.fields.n) === 3) break;
    }
    for (const via of ["websocket", "long-poll"]) {
        const worker = new Worker(client, { stream: "page", group: via, consumer: "c", via });
        await worker.run(({ entry }) => {
            if (done.push(`${via} ${entry.fields.n}`) % 3 === 0) worker.stop();
        });
    }
    return { tailed, done };
}
"""


def test_in_a_page_of_an_allowed_origin_it_does_the_same(client_module: Path, tmp_path: Path) -> None:
    with (
        serve_site(client_module.parent) as site,
        Server(tmp_path / "data", "--set", f"allowed_origins={site}") as server,
        open_page() as page,
    ):
        page.goto(f"{site}/")
        found = page.evaluate(IN_A_PAGE, [site, server.url])
    assert found["tailed"] == ["0", "1", "2"]
    assert found["done"] == [f"{via} {number}" for via in ("websocket", "long-poll") for number in range(3)]
