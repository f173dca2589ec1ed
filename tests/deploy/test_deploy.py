"""Files of deploy/: every option, variable, metric and path that they name exists."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.cli import COMMANDS, all_options, parse
from paceline.cli.config import variable_of
from paceline.cli.serve import ServeCommand
from paceline.server.run import LAST_WRITES
from paceline.server.settings import ServerSettings
from tests.docs.blocks import ROOT
from tests.server.conftest import Client
from tests.server.fake import FakeAsyncEngine

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
OTHER_VARIABLES = {"PACELINE_CACHE"}  # no options: core/cache.py reads it
MOUNT = "/cache"


def text_of(name: str) -> str:
    return (DEPLOY / name).read_text("utf-8")


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def files() -> list[Path]:
    return [path for path in DEPLOY.rglob("*") if path.is_file()]


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_every_variable_is_one_that_paceline_reads(path: Path) -> None:
    known = {variable_of(name) for name in all_options()} | OTHER_VARIABLES
    comments = re.sub(r"^\s*#.*$", "", path.read_text("utf-8"), flags=re.MULTILINE)
    named = set(re.findall(r"PACELINE_[A-Z_]+", comments))
    assert named <= known, named - known


def test_the_options_of_the_file_are_taken() -> None:
    command = parse(["serve", "--config", str(DEPLOY / "paceline.toml")])
    assert isinstance(command, ServeCommand)
    assert command.server.drain_timeout == 30.0 and command.engine.max_model_len == 8192


# -- systemd ---------------------------------------------------------------------------------------


def unit() -> dict[str, list[str]]:
    pairs = re.findall(r"^([A-Z]\w*)=(.*)$", text_of("paceline.service"), flags=re.MULTILINE)
    return {key: [value for other, value in pairs if other == key] for key, _ in pairs}


def test_the_unit_starts_a_command_that_exists_and_waits_for_its_drain() -> None:
    (start,) = unit()["ExecStart"]
    program, command, *arguments = start.split()
    assert program.endswith("/bin/paceline") and command in COMMANDS
    assert arguments[0] == "--config"
    assert float(unit()["TimeoutStopSec"][0]) > ServerSettings().drain_timeout + 2 * LAST_WRITES
    assert "2" in unit()["RestartPreventExitStatus"] and unit()["DynamicUser"] == ["yes"]


def test_secrets_beside_the_compose_file_are_not_committed() -> None:
    (document,) = documents(DEPLOY / "compose.yaml")
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    for secret in document["secrets"].values():
        assert f"/deploy/{Path(secret['file']).name}" in ignored


def test_the_unit_makes_the_folder_of_its_socket() -> None:
    assert unit()["RuntimeDirectory"] == ["paceline"]
    named = re.findall(r"--uds (\S+)", (ROOT / "docs/production.md").read_text() + text_of(
        "paceline.service"))  # fmt: skip
    assert named and all(path.startswith("/run/paceline/") for path in named)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_takes_the_unit() -> None:
    command = ["systemd-analyze", "verify", "--man=no", str(DEPLOY / "paceline.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if "is not executable" not in line]
    assert lines == []  # but for the program, which is not installed here


# -- the image -------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """Each instruction of the Dockerfile with its arguments on one line."""
    lines = [line for line in text_of("Dockerfile").splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    pairs = (line.strip().partition(" ") for line in joined.splitlines() if line.strip())
    return [(word, rest.strip()) for word, _, rest in pairs]


def stages() -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {"": []}
    for word, rest in instructions():
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            assert name, f"FROM {base} has no name"
            found[name] = [("FROM", base)]
        else:
            found[list(found)[-1]].append((word, rest))
    return found


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_the_image_has_no_more_rights_than_it_needs(target: str) -> None:
    chain, name = list[tuple[str, str]](), target
    while name in stages():
        chain = stages()[name] + chain
        name = stages()[name][0][1]
    words = [word for word, _ in chain]
    assert [pair for pair in chain if pair[0] == "USER"][-1] == ("USER", "10001:10001")
    assert words.index("HEALTHCHECK") and ("VOLUME", MOUNT) in chain
    assert ("ENTRYPOINT", '["paceline"]') in chain and ("CMD", '["serve"]') in chain
    environment = " ".join(rest for word, rest in chain if word == "ENV")
    for variable in ("PACELINE_CACHE", "HF_HOME", "HOME"):
        assert re.search(rf"\b{variable}={MOUNT}", environment), variable


def test_the_dockerfile_is_clean() -> None:
    named = stages()
    for stage in named.values():
        for word, rest in stage:
            if word == "FROM" and rest not in named:
                assert ":" in rest and "latest" not in rest  # hadolint DL3006, DL3007
            if word == "COPY" and "--from=" in rest:
                assert re.findall(r"--from=(\S+)", rest)[0] in named
            if word == "RUN":
                assert "curl" not in rest and "sudo" not in rest
                assert rest.count("pip install") == rest.count("--no-cache-dir")  # DL3042
                if "apt-get install" in rest:  # DL3009, DL3015
                    assert "--no-install-recommends" in rest
                    assert rest.endswith("rm -rf /var/lib/apt/lists/*")
            assert word != "ADD"  # DL3020
            if word in ("CMD", "ENTRYPOINT"):
                assert isinstance(json.loads(rest), list)  # DL3025
    copied = {source for word, rest in named["source"] if word == "COPY" for source in rest.split()}
    ignored = text_of("Dockerfile.dockerignore").splitlines()
    assert {f"!{source}" for source in copied if not source.startswith("./")} <= set(ignored)
    assert all((ROOT / line[1:]).exists() for line in ignored if line.startswith("!"))


# -- Compose and Kubernetes ------------------------------------------------------------------------


def test_compose() -> None:
    (document,) = documents(DEPLOY / "compose.yaml")
    assert set(document["services"]) == {"paceline", "paceline-cuda"}
    for service in document["services"].values():
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert service["ports"][0].startswith("127.0.0.1:")
        assert service["build"]["target"] in stages()
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
        assert all(secret in document["secrets"] for secret in service["secrets"])
        assert all(config["source"] in document["configs"] for config in service["configs"])
        assert {v.partition(":")[0] for v in service["volumes"]} <= set(document["volumes"])
        assert service["command"][0] in COMMANDS
        assert service["restart"].startswith("on-failure:"), "wrong options would restart for ever"
        assert service["mem_limit"]
    assert (DEPLOY / document["configs"]["options"]["file"]).exists()


def manifests() -> dict[str, dict[str, Any]]:
    return {item["kind"]: item for item in documents(KUBERNETES / "base" / "server.yaml")}


def test_kubernetes_manifests_have_the_shape_of_their_kinds() -> None:
    kinds = manifests()
    assert {kind: item["apiVersion"] for kind, item in kinds.items()} == {
        "PersistentVolumeClaim": "v1", "Service": "v1", "Deployment": "apps/v1",
    }  # fmt: skip
    deployment, service = kinds["Deployment"]["spec"], kinds["Service"]["spec"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels == service["selector"]
    ports = {port["name"] for port in container["ports"]}
    assert service["ports"][0]["targetPort"] in ports
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    claim = next(v for v in pod["volumes"] if v["name"] == "cache")["persistentVolumeClaim"]
    assert claim["claimName"] == kinds["PersistentVolumeClaim"]["metadata"]["name"]
    assert pod["enableServiceLinks"] is False  # else PACELINE_PORT is the Service's address
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
    rights = container["securityContext"]
    assert rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"]
    assert rights["capabilities"]["drop"] == ["ALL"]
    assert {"limits", "requests"} <= set(container["resources"])
    names = [entry["name"] for entry in container["env"]]
    assert len(names) == len(set(names)) and all(isinstance(e["value"], str)
                                                 for e in container["env"])  # fmt: skip
    drain = float(next(e["value"] for e in container["env"] if "DRAIN" in e["name"]))
    assert pod["terminationGracePeriodSeconds"] > drain + 2 * LAST_WRITES


def test_probes_ask_paths_that_need_no_key() -> None:
    client = Client(FakeAsyncEngine(), ServerSettings(host="0.0.0.0", api_keys=("secret",)))
    (container,) = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        path = container[probe]["httpGet"]["path"]
        assert client.get(path, headers={"Host": "10.1.2.3:8000"}).status_code == 200
    # a server that drains is not ready, and not to be killed
    asyncio.run(client.engine.drain(0))
    assert client.get(container["readinessProbe"]["httpGet"]["path"]).status_code == 503
    assert client.get(container["livenessProbe"]["httpGet"]["path"]).status_code == 200


@pytest.mark.parametrize("overlay", ["base", "cuda"])
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
def test_kustomize_takes_the_manifests(overlay: str) -> None:
    command = ["kubectl", "kustomize", str(KUBERNETES / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ("nvidia.com/gpu" in done.stdout) == (overlay == "cuda")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
def test_a_gpu_is_used_whatever_image_the_base_names(tmp_path: Path) -> None:
    shutil.copytree(KUBERNETES, tmp_path, dirs_exist_ok=True)
    base = tmp_path / "base" / "kustomization.yaml"
    base.write_text(base.read_text().replace("registry.example.com/paceline", "example.org/mine"))
    command = ["kubectl", "kustomize", str(tmp_path / "cuda")]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (pod,) = [d["spec"]["template"]["spec"] for d in yaml.safe_load_all(made)
              if d["kind"] == "Deployment"]  # fmt: skip
    (container,) = pod["containers"]
    assert container["image"].endswith(":cuda")
    assert {"name": "PACELINE_DEVICE", "value": "cuda"} in container["env"]


# -- Grafana ---------------------------------------------------------------------------------------


def test_every_metric_of_the_dashboard_is_exposed() -> None:
    client = Client(FakeAsyncEngine(), ServerSettings())
    assert client.complete().status_code == 200
    exposed = set(re.findall(r"^([a-z]+:\w+)\{", client.get("/metrics").text, flags=re.MULTILINE))
    # these have samples once there is a holdback
    exposed.add("paceline:holdback_speedup")
    board = json.loads(text_of("grafana.json"))
    texts = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    texts += [item["query"]["query"] for item in board["templating"]["list"][1:]]
    named = {name for text in texts for name in re.findall(r"\b(?:vllm|paceline):\w+", text)}
    assert len(named) > 20 and named <= exposed, named - exposed
    for text in texts:
        assert text.count("(") == text.count(")") and text.count("{") == text.count("}")


def test_the_dashboard_tiles_its_panels() -> None:
    panels = json.loads(text_of("grafana.json"))["panels"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places) == len({panel["id"] for panel in panels})
    assert all(panel["title"] and panel["description"] for panel in panels)
