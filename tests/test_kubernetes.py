"""The Kustomize overlays: sound by Kubernetes' own schemas, and agreeing with image and gateway.

Knows: kubernetes-validate, and kubectl's kustomize where a machine has it. No cluster is at hand.
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
from ruamel.yaml import YAML

from app.settings import Settings
from tests.waiting import completed

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "deploy" / "kustomize"
VALIDATE: Final = ROOT / ".venv" / "tools" / "bin" / "kubernetes-validate"
# Of the Prometheus operator, of Kustomize itself: Kubernetes has no schemas of them.
_OTHERS: Final = ("monitoring.coreos.com/", "kustomize.config.k8s.io/")
# Each overlay, and the kind of its workload.
OVERLAYS: Final = {"backend": "Deployment", "embedded": "StatefulSet"}
_SECRET: Final = re.compile(r"create secret generic (\S+)((?:[ \\\n]+--from-\S+)+)")
_KEY: Final = re.compile(r"--from-(?:file|literal)=([^=\s]+)")
overlays = pytest.mark.parametrize("overlay", OVERLAYS)


def _load(file: Path) -> dict[str, Any]:
    (document,) = YAML(typ="safe").load_all(file.read_text())
    return dict(document)


def _resources() -> dict[Path, dict[str, Any]]:
    found = {file: _load(file) for file in sorted(FOLDER.rglob("*.yaml"))}
    assert len(found) > 8
    return found


def _of(overlay: str) -> list[dict[str, Any]]:
    """What an overlay has, with the base, but for kustomizations."""
    return [
        document
        for file, document in _resources().items()
        if file.parent.name in ("base", overlay) and document["kind"] != "Kustomization"
    ]


def _kind(overlay: str, kind: str) -> dict[str, Any]:
    (found,) = (document for document in _of(overlay) if document["kind"] == kind)
    return found


def _workload(overlay: str) -> dict[str, Any]:
    return dict(_kind(overlay, OVERLAYS[overlay])["spec"])


def _validate(*files: Path) -> subprocess.CompletedProcess[str]:
    command = [str(VALIDATE), "--strict", *map(str, files)]
    return completed(command, timeout=60)


def test_each_resource_is_what_kubernetes_describes() -> None:
    """Strictly: a member that no schema has is refused."""
    of_kubernetes = [
        file for file, document in _resources().items() if not document["apiVersion"].startswith(_OTHERS)
    ]
    ran = _validate(*of_kubernetes, ROOT / "deploy" / "archive-cronjob.yaml")
    assert (ran.returncode, ran.stdout.count(" passed ")) == (0, len(of_kubernetes) + 2), (
        ran.stdout + ran.stderr
    )
    assert "WARN" not in ran.stdout


def test_a_typo_in_a_resource_is_found(tmp_path: Path) -> None:
    """As anybody makes one."""
    text = (FOLDER / "embedded" / "statefulset.yaml").read_text()
    (tmp_path / "typo.yaml").write_text(text.replace("readinessProbe:", "readinesProbe:"))
    ran = _validate(tmp_path / "typo.yaml")
    assert ran.returncode != 0
    assert "readinesProbe" in ran.stdout + ran.stderr


def test_each_overlay_names_what_is_there() -> None:
    """Every file beside a kustomization is in it, and the other way round."""
    for file, document in _resources().items():
        if document["kind"] != "Kustomization":
            continue
        beside = {one.name for one in file.parent.glob("*.yaml")} - {file.name}
        named = set(document["resources"])
        assert beside == {name for name in named if name.endswith(".yaml")}
        assert all((file.parent / name).exists() for name in named)


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not on this machine")
@overlays
def test_the_overlay_is_a_remote_base(overlay: str, tmp_path: Path) -> None:
    """By kubectl's kustomize, out of a repository: one of each kind, all but the namespace in it."""
    there = tmp_path / "weir"
    shutil.copytree(FOLDER, there / "deploy" / "kustomize")
    identity = ("-c", "user.name=weir", "-c", "user.email=weir@localhost")
    for command in (["init", "--quiet"], ["add", "."], [*identity, "commit", "--quiet", "--message=all"]):
        subprocess.run(["git", *command], cwd=there, check=True, timeout=60)
    own = tmp_path / "own" / "kustomization.yaml"
    own.parent.mkdir()
    own.write_text(f"resources:\n- file://{there}//deploy/kustomize/{overlay}?ref=HEAD\n")
    command = ["kubectl", "kustomize", str(own.parent)]
    ran = completed(command, timeout=60)
    assert ran.returncode == 0, ran.stderr
    (tmp_path / "built.yaml").write_text(ran.stdout)
    built = list(YAML(typ="safe").load_all(ran.stdout))
    assert sorted(one["kind"] for one in built) == sorted(one["kind"] for one in _of(overlay))
    assert all(one["kind"] == "Namespace" or one["metadata"]["namespace"] == "weir" for one in built)
    assert _validate(tmp_path / "built.yaml").returncode == 0


@overlays
def test_what_selects_the_pod_selects_it(overlay: str) -> None:
    """The service, the policies and the scrape name the labels that the pod and the service have."""
    labels = _workload(overlay)["template"]["metadata"]["labels"]
    assert labels
    assert _kind(overlay, "Service")["spec"]["selector"] == labels
    assert _kind(overlay, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    for kind in ("PodDisruptionBudget", "ServiceMonitor", OVERLAYS[overlay]):
        assert _kind(overlay, kind)["spec"]["selector"]["matchLabels"] == labels
    base = _load(FOLDER / "base" / "kustomization.yaml")
    assert base["labels"] == [{"pairs": labels}]


@overlays
def test_the_pod_agrees_with_the_image_and_the_gateway(overlay: str) -> None:
    """Its user, its settings, its files, the time it has to stop."""
    workload = _workload(overlay)
    pod = workload["template"]["spec"]
    (container,) = pod["containers"]
    assert f"USER {pod['securityContext']['runAsUser']}\n" in _image()
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    claims = [one["metadata"]["name"] for one in workload.get("volumeClaimTemplates", ())]
    assert set(mounts) == {*claims, *(one["name"] for one in pod["volumes"])}
    settings = {one["name"]: one.get("value") for one in container["env"]}
    assert {name.removeprefix("WEIR_").lower() for name in settings} <= set(Settings.model_fields)
    assert settings["WEIR_TOKENS_FILE"] == f"{mounts['tokens']}/tokens.toml"
    (pause,) = re.findall(r"sleep\((\d+)\)", container["lifecycle"]["preStop"]["exec"]["command"][-1])
    # 15: CLOSE_S_MAX, with the default of drain_s_max.
    assert (
        pod["terminationGracePeriodSeconds"] > int(pause) + Settings.model_fields["drain_s_max"].default + 15
    )


def _image() -> str:
    return (ROOT / "Dockerfile").read_text().rpartition("\nFROM ")[2]


def test_one_replica_owns_the_log() -> None:
    """And has a volume for it."""
    stateful = _workload("embedded")
    (container,) = stateful["template"]["spec"]["containers"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert stateful["replicas"] == 1
    assert f"VOLUME {mounts['data']}\n" in _image()


def test_gateways_over_a_backend_are_several_and_may_call_it() -> None:
    """They know it from a secret, whose password is a file; no other overlay calls anything."""
    deployment = _workload("backend")
    assert deployment["replicas"] > 1
    (container,) = deployment["template"]["spec"]["containers"]
    settings = {one["name"]: one for one in container["env"]}
    assert settings["WEIR_BACKEND"]["valueFrom"]["secretKeyRef"] == {"name": "weir-backend", "key": "url"}
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert settings["WEIR_BACKEND_PASSWORD_FILE"]["value"] == f"{mounts['backend']}/password"
    (patch,) = _load(FOLDER / "backend" / "kustomization.yaml")["patches"]
    assert patch["target"] == {"kind": "NetworkPolicy", "name": "weir"}
    (change,) = YAML(typ="safe").load(patch["patch"])
    assert change["path"] == "/spec/egress"
    assert {one["port"] for rule in change["value"] for one in rule["ports"]} == {53, 6379}
    assert _kind("backend", "NetworkPolicy")["spec"]["egress"] == []


@overlays
def test_the_commands_make_the_secrets_that_pods_and_scrapes_use(overlay: str) -> None:
    """Under the very names, with each key that is mounted."""
    text = (ROOT / "deploy" / "README.md").read_text()
    commands = text[text.index(f"apply --kustomize deploy/kustomize/{overlay}") :].partition("```")[0]
    secrets = {name: set(_KEY.findall(keys)) for name, keys in _SECRET.findall(commands)}
    (endpoint,) = _kind(overlay, "ServiceMonitor")["spec"]["endpoints"]
    credentials = endpoint["authorization"]["credentials"]
    assert credentials["key"] in secrets[credentials["name"]]
    mounted = [one["secret"] for one in _workload(overlay)["template"]["spec"]["volumes"] if "secret" in one]
    assert {one["secretName"] for one in mounted} == set(secrets)
    for one in mounted:
        assert {item["key"] for item in one["items"]} <= secrets[one["secretName"]]
