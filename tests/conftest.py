"""What holds for every test.

Knows: hypothesis's profile, that Ctrl-C is heard, that nothing of ours may block the event loop, where logs
go, which tests share a process, in which order they begin, which half of them runs, which are not measured,
when the collector runs, that clients share whom they trust, what did not run, and how a failure is repeated.
Must never know: engines, APIs, Redis; those fixtures live beside the tests that use them.
"""

import gc
import os
import shlex
import signal
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import httpx
import pytest
import structlog
from blockbuster import BlockBuster, BlockBusterFunction
from hypothesis import is_hypothesis_test, settings
from xdist.scheduler import LoadFileScheduling

from tests import halves

# No deadline: an example shares two cores with a server, and slow is not wrong.
settings.register_profile("gate", deadline=None, print_blob=True)
settings.load_profile("gate")
settings.register_profile("half", settings.get_profile("gate"), max_examples=50)

# In the background of a shell it is ignored, and what a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A session of Spark and its first query take twenty seconds, so one process has the tests on Spark: those
# that share a session, and then those that start it as programs. Spark gives its Python ten seconds to begin,
# which is too few beside all the others unless they give way, by this niceness.
FIRST, PAIR, GIVES_WAY = "gw0", 2, 5
ON_SPARK = (
    "tests/spark/on_spark/",
    "tests/spark/processes/",
    "tests/documents/test_documents.py::test_commands_print_what_the_document_says[pipeline.md]",
)
# Whose files share what takes long to make: wheels, and environments with them.
MADE_ONCE = (("tests/distributions/",),)
# Programs of others beside ours, of which each takes half a minute, and what runs on Spark: of each folder
# half is run.
HALVED = (
    *("tests/sdk/generated/", "tests/sdk/durable/", "tests/distributions/", "tests/spark/processes/"),
    "tests/spark/on_spark/",
)
SCANNED = ("app", "engine", "history")
# What blockbuster does not know by itself, and what a log on disk does most.
SYNCS = ("fdatasync", "fsync")


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """Where a test lets the process's log go ends with it: the next one reads its own."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session", autouse=True)
def loop_guard() -> Iterator[BlockBuster]:
    """A blocking call made by our code while an event loop runs raises BlockingError, in every test."""
    guard = BlockBuster(scanned_modules=list(SCANNED))
    for name in SYNCS:
        guard.functions[f"os.{name}"] = BlockBusterFunction(os, name, scanned_modules=list(SCANNED))
    # Coverage takes its lock at calls of measured functions, while another thread may hold it.
    guard.functions["threading.Lock.acquire"].can_block_in("coverage/collector.py", "lock_data")
    # The file of a time zone, 2 kB, once for each zone that a rule names.
    for name in ("os.stat", "io.BufferedReader.read", "io.TextIOWrapper.read"):
        guard.functions[name].can_block_in("engine/cron.py", "_zone")
    guard.activate()
    yield guard
    guard.deactivate()


@pytest.fixture(scope="session", autouse=True)
def shared_authorities() -> Iterator[None]:
    """Clients of httpx share whom they trust: each would read all authorities of the machine, for 30 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", cache(httpx.create_ssl_context))
        yield


# Where single tests take long, as processes, browsers or generators do.
_PROGRAMS = (
    "spark/table",
    "contract",
    "proof",
    "console",
    "sdk",
    "typescript",
    "distributions",
    "documents",
    "cli",
)
# Where they wait most of their time.
_WAITING = "cluster", "fronts", "hostile", "crash"
# A third of those that run in pairs.
_TURNS = "tests/engine/test_stalls.py"
LONG = *ON_SPARK, _TURNS, *(f"tests/{folder}/" for folder in (*_PROGRAMS, *_WAITING))

# Coverage makes the same code up to three times as slow. These start processes, most of which are not
# measured, or do in large numbers what the tests of a package do once: those hold the floors without them.
_REPEATED = "contract", "crash", "hostile", "proof"
_OUTSIDE = "client", "console", "distributions", "documents", "sdk", "typescript"
_SPARK = "spark/on_spark", "spark/processes"
_BESIDE_OTHERS = "fronts", "app/resp"
_COMMANDS = "backup", "command_line", "log", "migrate", "token"
# Histories by chance, and the same call a thousand times: the tests beside these run the same lines.
_ENGINE = (
    *("beside_redis", "state_machine", "units_blocks", "units_groups", "units_stream"),
    *("costs", "ends_of_ranges", "memory", "neighbours", "plan_durable", "under_load"),
)
_APP = (
    *("test_answers", "test_frames_hostile", "test_hostile_bodies", "test_lookups", "test_memory_limit"),
    *("test_openapi", "test_setting_bounds", "auth/test_attacks", "auth/test_enforcement"),
    "test_readers_in_any_order",
)
UNMEASURED = (
    *(f"tests/{folder}/" for folder in (*_REPEATED, *_OUTSIDE, *_SPARK, *_BESIDE_OTHERS)),
    *(f"tests/cli/test_{name}" for name in _COMMANDS),
    *(f"tests/engine/test_{name}.py" for name in _ENGINE),
    *(f"tests/app/{name}.py" for name in _APP),
)
# The same test once more: over another kind of server.
AGAIN = {"redis8", "valkey"}
# Kinds of servers, as parameters: a test over each of them is repeated.
SERVERS = {"redis", "redis8", "valkey", "cluster"}
# Measured with the first of a test's parameters, and over a backend: the others run the same lines.
FIRST_ALONE = "tests/engine/"
# What Hypothesis draws is not measured: lines that it alone reaches would come and go. Here it reaches most.
DRAWN_ALONE = "tests/engine/test_packed.py"


# How a person runs a test, and how many of those that failed are listed so.
PYTEST = ".venv/bin/pytest"
REPEATED_MAX = 20
# Marks that tests have by name, in few files.
_RARE = "early", "paired", "alone"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A run of few tests, as `-m alone`, reads only the files that have some: to read all takes longer."""
    mark: str = config.option.markexpr
    if mark not in _RARE or collection_path.suffix != ".py":
        return None
    return True if f"mark.{mark}" not in collection_path.read_text(encoding="utf-8") else None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """The collector rests while thousands of modules and tests are read, and passes over them later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Of the processes that share the tests the first has Spark, and the others give way to it. With
    `--half`, the tree chooses; those processes are given it with the options.
    """
    worker = getattr(config, "workerinput", None)
    if worker is not None and worker["workercount"] > PAIR and worker["workerid"] != FIRST:
        os.nice(GIVES_WAY)
    if not config.option.half:
        return
    config.option.tree = getattr(config.option, "tree", None) or halves.tree()
    halves.choose(config.option.tree)
    settings.load_profile("half")


def _halve(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out half of the parameters of tests that repeat themselves over them."""
    repeated: defaultdict[str, list[str]] = defaultdict(list)
    over_servers = set[str]()
    for item in items:
        if item.get_closest_marker("halved") is not None:
            family = _family(item)
            repeated[family].append(item.nodeid)
            if not SERVERS.isdisjoint(_parameters(item)):
                over_servers.add(family)
    # A further kind of server shall not be a further run of what is tried over each.
    left_out = {
        name
        for family, names in repeated.items()
        for name in {*names} - {*halves.half(names, at_most=family in over_servers)}
    }
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]


def _family(item: pytest.Item) -> str:
    """What an item has in common with those that it is halved with: its folder, or all but its kind of
    server, if any.
    """
    folder = next((one for one in HALVED if item.nodeid.startswith(one)), None)
    if folder is not None:
        return folder
    others = [word for word in _parameters(item) if word not in SERVERS]
    return _name(item) if len(others) == len(_parameters(item)) else f"{_name(item)}[{'-'.join(others)}]"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes long begins first; begun last, one process would be at it while the others have ended."""
    for item in items:
        if item.nodeid.startswith(HALVED) or not SERVERS.isdisjoint(_parameters(item)):
            item.add_marker(pytest.mark.halved)
    if not halves.are_whole():
        _halve(config, items)
    measured: set[str] = set()
    for item in items:
        if _is_measured(item, measured):
            measured.add(_name(item))
        else:
            item.add_marker(pytest.mark.no_cover)
    if hasattr(config, "workerinput"):
        begins = [*LONG, ""]
        items.sort(key=lambda item: next(n for n, path in enumerate(begins) if item.nodeid.startswith(path)))


def _name(item: pytest.Item) -> str:
    """A test's name without its parameters."""
    return item.nodeid.partition("[")[0]


def _parameters(item: pytest.Item) -> list[str]:
    return item.nodeid.removesuffix("]").partition("[")[2].split("-")


def _is_measured(item: pytest.Item, before: set[str]) -> bool:
    """Whether a test's lines count; `before` are the names of those that do already."""
    path = item.nodeid
    kinds = SERVERS.intersection(_parameters(item))
    is_again = (_name(item) in before and path.startswith(FIRST_ALONE) and not kinds) or bool(AGAIN & kinds)
    is_drawn = is_hypothesis_test(getattr(item, "obj", None)) and not path.startswith(DRAWN_ALONE)
    return not (is_again or is_drawn or path.startswith(UNMEASURED))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """What a test starts that is not measured is not measured either."""
    if item.get_closest_marker("no_cover") is None:
        return (yield)
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Pytest-cov alone measures a worker, since it heeds `no_cover`. Without this, coverage would also start
    from the environment there, and continue where pytest-cov pauses.
    """
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Stop the first of two measurements that pytest-cov starts in a worker: it heeds no `no_cover`.

    The plugin starts one when it reads the arguments of the whole run, and one for the worker.
    """
    plugin = session.config.pluginmanager.getplugin("_cov")
    if hasattr(session.config, "workerinput") and plugin is not None and plugin.cov_controller is not None:
        plugin.cov_controller.cov.stop()


class _Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """A file's tests stay together: they share a server. So do those of a session of Spark, and of wheels.
    Spark's come first, and go to the process that does not give way.
    """

    def schedule(self) -> None:
        """Give each process its first tests, in their order."""
        for node in [one for one in self.nodes if one.gateway.id != FIRST]:
            self.assigned_work[node] = self.assigned_work.pop(node)
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((some[0] for some in (ON_SPARK, *MADE_ONCE) if nodeid.startswith(some)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling:
    """How the workers of `--numprocesses` share the tests."""
    # Otherwise the files with most tests would begin, which are quick ones.
    config.option.loadscopereorder = False
    return _Scheduling(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--not-run=FILE` collects the notes of several runs, so that the gate can end with them."""
    parser.addoption(
        "--backend",
        choices=["redis", "redis8", "valkey", "cluster"],
        help="run the tests of the application over such a server, as docs/scale.md says they differ there",
    )
    parser.addoption(
        "--half",
        action="store_true",
        help="run half of what is repeated or tried at random; the tree chooses which",
    )
    parser.addoption(
        "--not-run", type=Path, help="append to this file which tests could not run here, and why"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """How a failure is repeated; and what did not run, since it has proved nothing, by file and reason."""
    if hasattr(config, "workerinput"):
        # The process that has the terminal names them all.
        return
    failed = [*terminalreporter.stats.get("failed", []), *terminalreporter.stats.get("error", [])]
    if failed:
        terminalreporter.section("to repeat what failed")
    for report in failed[:REPEATED_MAX]:
        terminalreporter.write_line(f"{PYTEST} {shlex.quote(report.nodeid)}")
    skipped: list[pytest.TestReport | pytest.CollectReport] = terminalreporter.stats.get("skipped", [])
    places = Counter((report.nodeid.partition("::")[0], _reason(report)) for report in skipped)
    lines = [
        f"could not run here: {reason} ({count} in {file})"
        for (file, reason), count in sorted(places.items())
    ]
    if not halves.are_whole():
        lines.append(f"the half of tree {config.option.tree} ran; all of it runs with: make test HALF=")
    if lines:
        terminalreporter.section("what did not run")
    for line in lines:
        terminalreporter.write_line(line)
    collected: Path | None = config.getoption("--not-run")
    if lines and collected is not None:
        with collected.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    result = report.longrepr
    return result[2].removeprefix("Skipped: ") if isinstance(result, tuple) else str(result)
