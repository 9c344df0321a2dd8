"""Alert rules and dashboard of deploy/monitoring: sound, about metrics that exist, and alerts that fire.

Knows: Prometheus and its promtool, how Grafana writes a dashboard down.
Must never know: where a metric's figures come from.
"""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from ruamel.yaml import YAML

from app.metrics.families import FAMILIES
from tests.proof.machine import needs, no_strace
from tests.proof.tracing import injecting
from tests.server import Server, free_port, server_of
from tests.waiting import completed

MONITORING: Final = Path(__file__).parents[1] / "deploy" / "monitoring"
ALERTS: Final = MONITORING / "alerts.yml"
METRIC: Final = re.compile(r"\bweir_\w+")
DURATION: Final = re.compile(r"\[\d+m\]")
# What Prometheus itself makes of a histogram.
PARTS: Final = ("_bucket", "_count", "_sum")
FIRES_S_MAX: Final = 60.0
INTERVAL: Final = "200ms"
# What an alert looks at for minutes, in seconds.
QUICK_RANGE: Final = "[4s]"


@cache
def no_prometheus() -> str | None:
    """Why there is no Prometheus here; None if there is."""
    missing = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
    return f"needs {', '.join(missing)}" if missing else None


def promtool(*words: str, text: str | None = None) -> None:
    """Run promtool; fails with what it says."""
    ran = completed(["promtool", *words], input=text, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def rules() -> list[dict[str, Any]]:
    """All alert rules."""
    (group,) = YAML(typ="safe").load(ALERTS.read_text())["groups"]
    return list(group["rules"])


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def queries() -> list[str]:
    """All queries of the dashboard, with values for Grafana's variables."""
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [re.sub(r"\$(instance|stream)\b", ".*", one).replace("$__rate_interval", "5m") for one in found]


def named(query: str) -> set[str]:
    """The metrics of a query, histograms by their own names; labels and strings are none."""
    bare = re.sub(r'"[^"]*"', "", query)
    found = set()
    for name in METRIC.findall(bare):
        part = next((part for part in PARTS if name.endswith(part) and name not in FAMILIES), "")
        found.add(name.removesuffix(part))
    return found


def test_queries_are_about_metrics_that_exist() -> None:
    """Those of rules, of panels and of the variables."""
    variables = [one["definition"] for one in dashboard()["templating"]["list"] if one["type"] == "query"]
    asked = [*queries(), *(rule["expr"] for rule in rules()), *variables]
    assert set().union(*map(named, asked)) <= FAMILIES.keys()


def test_every_metric_is_on_the_dashboard() -> None:
    """What is counted can be seen, but for the log's failure, which is among all that fail."""
    assert FAMILIES.keys() - set().union(*map(named, queries())) == {"weir_log_failed"}


@needs(no_prometheus)
def test_rules_and_configuration_are_sound() -> None:
    """As Prometheus's own tool sees them."""
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(ALERTS))
    promtool("check", "config", str(MONITORING / "prometheus.yml"))


@needs(no_prometheus)
def test_queries_of_the_dashboard_are_queries(tmp_path: Path) -> None:
    """Each as the expression of a rule, which promtool parses; one that is none is found."""
    assert len(queries()) >= len(panels())
    rows = [{"record": f"panel:query{number}", "expr": query} for number, query in enumerate(queries())]
    file = tmp_path / "queries.json"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rows}]}))
    promtool("check", "rules", str(file))
    rows[0]["expr"] += ")"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rows}]}))
    with pytest.raises(AssertionError, match="parse"):
        promtool("check", "rules", str(file))


def test_panels_of_the_dashboard_have_places_of_their_own() -> None:
    """No two overlap, each has a number, a title and an explanation."""
    taken: set[tuple[int, int]] = set()
    everything = dashboard()["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    for panel in everything:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert all(panel["title"] and panel["description"] for panel in panels())


def chapter(name: str) -> list[list[str]]:
    """The rows of the table in a chapter of docs/operations.md."""
    text = (MONITORING.parents[1] / "docs" / "operations.md").read_text()
    lines = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return rows[2:]


def test_the_documented_metrics_are_those_that_exist() -> None:
    """By name, type and labels, in the same order and with the same words."""
    kinds = {CounterMetricFamily: "counter", GaugeMetricFamily: "gauge", HistogramMetricFamily: "histogram"}
    assert chapter("Metrics") == [
        [
            f"`{family.name}`",
            kinds[family.kind],
            ", ".join(f"`{label}`" for label in family.labels),
            family.help,
        ]
        for family in FAMILIES.values()
    ]


def test_every_alert_says_what_to_do() -> None:
    """Each has its row, and no row is about an alert that does not exist."""
    rows = chapter("When an alert fires")
    assert [alert for alert, _, _ in rows] == [rule["alert"] for rule in rules()]
    assert all(meaning and remedy for _, meaning, remedy in rows)


UNAVAILABLE: Final = 'weir_backend_requests_total{instance="g",lane="read",outcome="backend_unavailable"}'
NOT_REPLICATED: Final = 'weir_backend_requests_total{instance="g",lane="write",outcome="not_replicated"}'
CONNECTIONS: Final = 'weir_backend_connections{instance="g",state="%s"}'
SECONDS: Final = 'weir_backend_request_seconds_bucket{instance="g",lane="read",le="%s"}'
# An alert about the backend, the series that make it fire, the same beside the bound, and from which minute.
BACKEND_ALERTS: Final = (
    ("WeirBackendUnavailable", {UNAVAILABLE: "0+1x30"}, {UNAVAILABLE: "7x30"}, 3),
    ("WeirBackendNotReplicated", {NOT_REPLICATED: "0+1x30"}, {NOT_REPLICATED: "7x30"}, 3),
    (
        "WeirBackendConnections",
        {CONNECTIONS % "wanted": "12x30", CONNECTIONS % "up": "11x30"},
        {CONNECTIONS % "wanted": "12x30", CONNECTIONS % "up": "12x30"},
        2,
    ),
    # Of one hundred requests a minute one, or two, in more than half a second.
    (
        "WeirBackendSlow",
        {SECONDS % "0.5": "0+98x30", SECONDS % "1.0": "0+100x30", SECONDS % "+Inf": "0+100x30"},
        {SECONDS % "0.5": "0+99x30", SECONDS % "1.0": "0+100x30", SECONDS % "+Inf": "0+100x30"},
        8,
    ),
)


@needs(no_prometheus)
@pytest.mark.parametrize(("alert", "series", "beside", "minute"), BACKEND_ALERTS)
def test_alerts_about_the_backend_fire_at_their_bounds(
    alert: str, series: dict[str, str], beside: dict[str, str], minute: int, tmp_path: Path
) -> None:
    """As promtool runs the rules: they fire after their time, and do not beside the bound."""

    def run(given: dict[str, str], at: int, *, fires: bool) -> None:
        test = {
            "rule_files": [str(ALERTS)],
            "tests": [
                {
                    "interval": "1m",
                    "input_series": [{"series": name, "values": values} for name, values in given.items()],
                    "promql_expr_test": [
                        {
                            "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                            "eval_time": f"{at}m",
                            "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
                        }
                    ],
                }
            ],
        }
        file = tmp_path / "test.json"
        file.write_text(json.dumps(test))
        promtool("test", "rules", str(file))

    run(series, 0, fires=False)
    run(series, minute, fires=True)
    run(beside, 20, fires=False)


# ---- a real Prometheus


class Prometheus:
    """One that evaluates the rules five times a second. `alerts` are those that fire."""

    def __init__(self, folder: Path, gateways: list[Server]) -> None:
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{free_port()}", timeout=10)
        quick = {"groups": [{"name": "weir", "rules": [_quick(rule) for rule in rules()]}]}
        (folder / "alerts.json").write_text(json.dumps(quick))
        targets = [f"127.0.0.1:{gateway.port}" for gateway in gateways]
        config = {
            "global": {
                "scrape_interval": INTERVAL,
                "scrape_timeout": INTERVAL,
                "evaluation_interval": INTERVAL,
            },
            "rule_files": ["alerts.json"],
            "scrape_configs": [{"job_name": "weir", "static_configs": [{"targets": targets}]}],
        }
        (folder / "prometheus.json").write_text(json.dumps(config))
        self._command = [
            "prometheus",
            f"--config.file={folder / 'prometheus.json'}",
            f"--storage.tsdb.path={folder / 'series'}",
            f"--web.listen-address={self._http.base_url.netloc.decode()}",
        ]
        self._log = folder / "prometheus.log"

    @contextmanager
    def running(self) -> Iterator[None]:
        with self._log.open("wb") as log, self._http:
            process = subprocess.Popen(self._command, stdout=log, stderr=log)
            try:
                yield
            finally:
                process.kill()
                process.wait(10)

    def _data(self, path: str) -> Any:
        with suppress(httpx.TransportError):
            answer = self._http.get(f"/api/v1/{path}")
            if answer.is_success:
                return answer.json()["data"]
        return {}

    def firing(self) -> set[tuple[str, str]]:
        """Alerts that fire, with the addresses of their gateways."""
        alerts = self._data("alerts").get("alerts", ())
        return {
            (alert["labels"]["alertname"], alert["labels"].get("instance", ""))
            for alert in alerts
            if alert["state"] == "firing"
        }

    def wait_for(self, alert: str, gateway: Server, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Wait until the alert fires for this gateway."""
        deadline = time.monotonic() + FIRES_S_MAX
        while (alert, f"127.0.0.1:{gateway.port}") not in self.firing():
            assert time.monotonic() < deadline, (
                f"{alert} does not fire: {self.firing()} {self._log.read_text()}"
            )
            meanwhile()
            time.sleep(0.05)


def _quick(rule: dict[str, Any]) -> dict[str, Any]:
    """The rule as it stands, but for its minutes."""
    expression = DURATION.sub(QUICK_RANGE, rule["expr"])
    return {**rule, "expr": expression, "for": "1s" if "for" in rule else "0s"}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Server]:
    """One whose log fails at the 300th sync, each publish taking one."""
    options = ("--fsync", "always", "--set", "metrics_streams=jobs", "--set", "log_requests=none")
    server = Server(tmp_path / "data", *options)
    with server:
        segment = max((tmp_path / "data").glob("segment-*.weir"))
        server.stop()
        server.wrapper = injecting("fdatasync", "error=EIO:when=300", path=segment)
        server.start()
        yield server


# One with less memory than the process takes.
full = server_of("function", "--set", "memory_bytes_max=1048576")


@pytest.mark.paired
@needs(no_prometheus)
@needs(no_strace)
def test_alerts_fire(gateway: Server, full: Server, tmp_path: Path) -> None:
    """Lag that rises, memory, a log that fails, a gateway that is gone; and nothing fires before."""
    prometheus = Prometheus(tmp_path, [gateway, full])
    with prometheus.running(), httpx.Client(base_url=gateway.url, timeout=30) as http:
        prometheus.wait_for("WeirMemoryFull", full)
        prometheus.wait_for("WeirMemoryHigh", full)
        well = f"127.0.0.1:{gateway.port}"
        assert {name for name, instance in prometheus.firing() if instance == well} == set()

        def publish(count: int = 10) -> int:
            batch = {"entries": [{"fields": {"n": n}} for n in range(count)]}
            return http.post("/v1/streams/jobs/entries", json=batch).status_code

        assert http.put("/v1/streams/jobs/groups/workers", json={"start": "0", "mkstream": True}).is_success
        assert publish(1_100) == 201
        prometheus.wait_for("WeirLagRising", gateway, publish)
        assert ("WeirLogFailed", well) not in prometheus.firing()
        statuses = {publish() for _ in range(400)}
        assert statuses == {201, 503}
        prometheus.wait_for("WeirLogFailed", gateway)
        full.kill()
        prometheus.wait_for("WeirDown", full)


@needs(no_prometheus)
def test_the_metrics_are_as_prometheus_wants_them(tmp_path: Path) -> None:
    """Promtool finds no fault with names, types and help."""
    with (
        Server(tmp_path / "data", "--set", "metrics_streams=*") as server,
        httpx.Client(base_url=server.url) as http,
    ):
        http.post("/v1/streams/s/entries", json={"fields": {"n": 1}})
        http.put("/v1/streams/s/groups/g", json={"start": "0"})
        promtool("check", "metrics", text=http.get("/metrics").text)
