"""What runs the gateway elsewhere is sound: no container engine is at hand, but the linters for it are."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from ruamel.yaml import YAML

from app.lifespan import check_exposure
from app.policies import ROOT_TOKEN_CHARS_MIN
from app.settings import Settings, load
from tests.documents.shell import options_of
from tests.waiting import completed

ROOT = Path(__file__).parents[1]
TOOLS = Path(sys.executable).parent


def lint(*command: str) -> None:
    ran = completed(command, cwd=ROOT, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_image_is_built_as_images_should_be() -> None:
    """Hadolint finds nothing in the Dockerfile."""
    lint(str(TOOLS / "hadolint"), "Dockerfile")


def test_each_image_names_the_list_of_its_packages() -> None:
    """It is made where the label says, by what the build's context has."""
    text = (ROOT / "Dockerfile").read_text()
    labels = re.findall(r'weir\.sbom="(\S+)"', text)
    assert len(labels) == text.count("ENTRYPOINT")
    assert re.findall(r"cyclonedx-py environment .* -o (\S+) /opt/weir/bin/python", text) == labels
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    assert {f"!{name}" for name in re.findall(r"requirements[-a-z]*\.lock", text)} <= set(allowed)


@pytest.mark.parametrize("file", ["compose.yaml", "compose-cluster.yaml"])
def test_the_compose_file_is_one(file: str) -> None:
    """It is what the specification of compose files describes."""
    lint(str(TOOLS / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", f"deploy/{file}")


@pytest.mark.parametrize("line", ["ExecStart=", "DynamicUser=yes", "NoNewPrivileges", "ProtectSystem=strict"])
@pytest.mark.parametrize("name", ["weir.service", "weir-archive.service"])
def test_the_unit_is_hardened(name: str, line: str) -> None:
    """A unit keeps the process to its own data; where systemd is at hand it says that the unit is sound."""
    unit = ROOT / "deploy" / name
    assert line in unit.read_text()
    if shutil.which("systemd-analyze"):
        ran = completed(["systemd-analyze", "verify", str(unit)], timeout=60)
        # The program is not installed at its place here; nothing else may be said.
        said = [text for text in ran.stderr.splitlines() if name in text and "not executable" not in text]
        assert said == []


def test_systemd_finds_little_that_the_unit_exposes() -> None:
    """At most 2.0 of 10, by systemd's own count."""
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20"]
    if not shutil.which(command[0]):
        pytest.skip("systemd-analyze is not on this machine")
    lint(*command, "deploy/weir.service")


def test_the_unit_waits_for_the_gateway_and_watches_it() -> None:
    """What it notifies systemd of; the token is a secret that systemd reads, its setting names the copy."""
    unit = (ROOT / "deploy" / "weir.service").read_text().splitlines()
    assert {"Type=notify", "TimeoutStartSec=infinity", "WatchdogSec=30"} <= set(unit)
    (credential,) = (line for line in unit if line.startswith("LoadCredential="))
    name = credential.removeprefix("LoadCredential=").partition(":")[0]
    assert f"Environment=WEIR_ROOT_TOKEN_FILE=%d/{name}" in unit
    given = [line.split("=", 2)[1] for line in unit if line.startswith("Environment=WEIR_")]
    assert {one.removeprefix("WEIR_").lower() for one in given} <= set(Settings.model_fields)


def _documents(name: str) -> list[dict[str, Any]]:
    return list(YAML(typ="safe").load_all((ROOT / "deploy" / name).read_text()))


def _jobs() -> dict[str, list[str]]:
    """The command lines of jobs, by the file they stand in."""
    (compose,) = _documents("compose.yaml")
    _, cron = _documents("archive-cronjob.yaml")
    pod = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    unit = (ROOT / "deploy" / "weir-archive.service").read_text()
    (started,) = re.findall(r"^ExecStart=\S+ (.+)$", unit, re.MULTILINE)
    return {
        "systemd": started.split(),
        "compose": compose["services"]["archive"]["command"],
        "cron": pod["containers"][0]["args"],
    }


@pytest.mark.parametrize("file", ["systemd", "compose", "cron"])
def test_jobs_are_started_with_options_that_exist(file: str) -> None:
    """And with those that the job insists on: the help names them all."""
    job, *words = _jobs()[file]
    options = {word.split("=")[0] for word in words if word.startswith("--")}
    assert "--checkpoint" in options
    assert options <= options_of(job)


def test_jobs_keep_archive_and_checkpoint_in_the_volume() -> None:
    """Everything else is read-only, or gone with the container."""
    for file, words in _jobs().items():
        folder = "/var/lib/weir-archive/" if file == "systemd" else "/archive/"
        places = [words[1], next(word.split("=")[1] for word in words if word.startswith("--checkpoint="))]
        assert all(place.startswith(folder) for place in places)
        assert len(set(places)) == len(places)
    (compose,) = _documents("compose.yaml")
    assert compose["services"]["archive"]["volumes"] == ["archive:/archive"]
    assert set(compose["volumes"]) == {"archive", "data"}


def test_a_supervisor_starts_a_failed_job_again() -> None:
    """A gateway that is away ends it with 1; wrong usage, lost entries and a second run need a person."""
    unit = (ROOT / "deploy" / "weir-archive.service").read_text().splitlines()
    assert {"Restart=on-failure", "RestartPreventExitStatus=2 3 4", "StartLimitIntervalSec=0"} <= set(unit)
    (compose,) = _documents("compose.yaml")
    assert compose["services"]["archive"]["restart"] == "on-failure"


def test_the_cron_job_is_hardened_and_comes_one_at_a_time() -> None:
    """As the unit and the compose file are; what it mounts is there."""
    claim, cron = _documents("archive-cronjob.yaml")
    assert (cron["apiVersion"], cron["kind"]) == ("batch/v1", "CronJob")
    assert (claim["apiVersion"], claim["kind"]) == ("v1", "PersistentVolumeClaim")
    assert cron["spec"]["concurrencyPolicy"] == "Forbid"
    pod = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == int(_uid())
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    claimed = [
        one["persistentVolumeClaim"]["claimName"] for one in pod["volumes"] if "persistentVolumeClaim" in one
    ]
    assert claimed == [claim["metadata"]["name"]]
    assert {container["name"]} == {
        rule["onExitCodes"]["containerName"]
        for rule in cron["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    }


def _uid() -> str:
    """Whom the images run as: one and the same in both."""
    users = set(re.findall(r"^USER (\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    (user,) = users
    return str(user)


def test_the_image_starts_with_a_token_alone() -> None:
    """Its arguments: without a token they are refused, since callers reach it from elsewhere."""
    arguments = re.findall(r"^CMD (.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[-1]
    command = [sys.executable, "-m", "weir", *json.loads(arguments)]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("WEIR_")}
    ran = completed(command, env=environment, timeout=60)
    assert (ran.returncode, "set root_token_file" in ran.stderr) == (2, True)
    settings, _ = load({"host": "0.0.0.0", "root_token": "t" * ROOT_TOKEN_CHARS_MIN})
    check_exposure(settings)


def test_jobs_and_gateway_get_their_tokens() -> None:
    """From secrets, in each of the examples."""
    (compose,) = _documents("compose.yaml")
    services = compose["services"]
    assert services["weir"]["environment"]["WEIR_ROOT_TOKEN"].startswith("${WEIR_ROOT_TOKEN:?")
    jobs = {file: next(w for w in words if w.startswith("--token-")) for file, words in _jobs().items()}
    assert jobs["compose"].removeprefix("--token-env=") in services["archive"]["environment"]
    assert jobs["systemd"] == "--token-file=%d/token"
    assert "LoadCredential=token:" in (ROOT / "deploy" / "weir-archive.service").read_text()
    _, cron = _documents("archive-cronjob.yaml")
    pod = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (mount,) = (one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "token")
    assert jobs["cron"] == f"--token-file={mount['mountPath']}/token"


def test_jobs_call_the_gateway_by_its_service() -> None:
    """The name in the compose file, or this machine."""
    (compose,) = _documents("compose.yaml")
    hosts = {
        str(urlsplit(word.removeprefix("--gateway=")).hostname)
        for words in _jobs().values()
        for word in words
        if word.startswith("--gateway=")
    }
    assert hosts == {"127.0.0.1", "weir"}
    assert compose["services"]["weir"]["environment"]["WEIR_ALLOWED_HOSTS"] == "weir"
