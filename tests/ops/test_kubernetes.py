"""The Kubernetes files: valid against the API's schemas, hardened, given time to drain, and scaled on what is really open."""

import re
import subprocess
from pathlib import Path
from shutil import which
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml

from models.base import connect_async
from models.plan import Account, DatasetPlan
from models.settings import Settings
from models.states import Event, Lane
from models.store import datasets
from ops.cli import app
from tests.hand import Hand, ended
from workers import asking

HERE = Path(__file__).parents[2] / "ops/kubernetes"
FILES = sorted(f for f in HERE.rglob("*.yaml") if f.name != "kustomization.yaml")
DOCUMENTS: list[tuple[Path, dict[str, Any]]] = [(f, d) for f in FILES for d in yaml.safe_load_all(f.read_text())]
PODS = {d["metadata"]["name"]: d["spec"]["template"]["spec"] for _, d in DOCUMENTS if "template" in d.get("spec", {})}
OURS = {name: pod for name, pod in PODS.items() if pod["containers"][0]["image"] == "draftmill"}
SCALED = {d["metadata"]["name"]: d["spec"] for _, d in DOCUMENTS if d["kind"] == "ScaledObject"}
SECRETS = {"postgres", "redis", "flower", "metrics", "api_key"}


def named(document: tuple[Path, dict[str, Any]]) -> str:
    return f"{document[0].parent.name}/{document[1]['kind']}-{document[1]['metadata']['name']}"


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if "keda" not in d[1]["apiVersion"]], ids=named)
def test_each_object_is_what_the_api_takes(document: tuple[Path, dict[str, Any]]) -> None:
    kubernetes_validate.validate(document[1], "1.34", strict=True)


@pytest.mark.parametrize("folder", ["base", "keda", "services"])
def test_a_kustomization_names_each_file_beside_it(folder: str) -> None:
    listed = yaml.safe_load((HERE / folder / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(f.name for f in FILES if f.parent.name == folder)


@pytest.mark.parametrize("folder", ["base", "whole"])
def test_kustomize_builds_it(folder: str) -> None:
    if which("kubectl") is None:
        pytest.skip("kubectl, which brings kustomize, is missing")
    done = subprocess.run(["kubectl", "kustomize", HERE / folder], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    assert len(built) == len([d for f, d in DOCUMENTS if folder == "whole" or f.parent.name == folder])
    for document in built:
        assert document["kind"] == "Namespace" or document["metadata"]["namespace"] == "draftmill"
        if "keda" not in document["apiVersion"]:
            kubernetes_validate.validate(document, "1.34", strict=True)


@pytest.mark.parametrize("name", PODS)
def test_no_pod_is_root_or_may_write_to_its_image(name: str) -> None:
    pod = PODS[name]
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False       # else a Service called flower sets FLOWER_PORT, which Flower reads
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                "capabilities": {"drop": ["ALL"]}}
        assert {"requests", "limits"} <= set(container["resources"])
        assert "memory" in container["resources"]["limits"]
        mounts = {m["name"] for m in container["volumeMounts"]}
        claims = {"data"} if name in ("postgres", "redis") else set()
        assert mounts == {v["name"] for v in pod["volumes"]} | claims


@pytest.mark.parametrize("name", OURS)
def test_each_command_is_the_clis_own_and_each_secret_file_is_mounted(name: str) -> None:
    [container] = OURS[name]["containers"]
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    words = container["args"]
    options = {o for p in commands[words[0]].params for o in p.opts}
    assert {w for w in words[1:] if w.startswith("-")} <= options
    [config] = [d for _, d in DOCUMENTS if d["kind"] == "ConfigMap"]
    env = {**config["data"], **{e["name"]: e["value"] for e in container.get("env", [])}}
    [secret] = [v["secret"] for v in OURS[name]["volumes"] if "secret" in v]
    mounted = {item["path"] for item in secret["items"]}
    assert mounted <= SECRETS
    assert secret["defaultMode"] == 0o440
    fields = {f"DRAFTMILL_{field.upper()}" for field in Settings.model_fields}
    for key, value in env.items():
        assert key in fields or re.sub(r"_(PASSWORD_)?FILE$", "_URL", key) in fields or key.removesuffix("_FILE") in fields, key
        if key.endswith("_FILE"):
            assert str(value).removeprefix("/run/secrets/draftmill/") in mounted, key


@pytest.mark.parametrize("name", [n for n in OURS if n != "migrate"])
def test_each_process_says_how_it_is_and_no_worker_is_killed_for_a_database_that_is_away(name: str) -> None:
    [container] = OURS[name]["containers"]
    assert "readinessProbe" in container
    assert ("livenessProbe" in container) == (name in ("flower", "metrics"))


@pytest.mark.parametrize("lane", ["short", "long"])
def test_a_worker_is_given_longer_than_its_longest_answer(lane: str) -> None:
    pod = PODS[f"worker-{lane}"]
    [container] = pod["containers"]
    grace_s = float({e["name"]: e["value"] for e in container["env"]}["DRAFTMILL_GRACE_S"])
    endpoint: Any = SimpleNamespace(account=Account())
    longest = asking._deadline_s(DatasetPlan(profile="p", model="m", account="a").lane(lane).max_tokens, endpoint)
    assert longest < grace_s < pod["terminationGracePeriodSeconds"] - 30
    [deployment] = [d for _, d in DOCUMENTS if d["kind"] == "Deployment" and d["metadata"]["name"] == f"worker-{lane}"]
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_nothing_is_reached_but_what_is_listed() -> None:
    policies = {d["metadata"]["name"]: d["spec"] for _, d in DOCUMENTS if d["kind"] == "NetworkPolicy"}
    assert policies["nothing-by-default"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    entries = {name for name, p in policies.items() if p.get("ingress")}
    assert entries == {"metrics", "fleet-to-services"}      # Flower is seen through a port-forward alone
    blocks = [to["ipBlock"] for e in policies["providers"]["egress"] for to in e["to"] if "ipBlock" in to]
    assert "169.254.0.0/16" in blocks[0]["except"]          # no worker asks the cloud for its credentials


@pytest.mark.parametrize("lane", ["short", "long"])
def test_a_scaled_object_has_what_keda_wants(lane: str) -> None:
    spec = SCALED[f"worker-{lane}"]
    assert spec["scaleTargetRef"] == {"name": f"worker-{lane}"}
    [trigger] = spec["triggers"]
    assert trigger["type"] == "postgresql"
    assert {"host", "port", "userName", "dbName", "sslmode", "query", "targetQueryValue"} <= set(trigger["metadata"])
    assert all(isinstance(v, str) for v in trigger["metadata"].values())
    [authentication] = [d for _, d in DOCUMENTS if d["kind"] == "TriggerAuthentication"]
    assert trigger["authenticationRef"] == {"name": authentication["metadata"]["name"]}
    assert authentication["spec"]["secretTargetRef"][0]["key"] in SECRETS
    [container] = PODS[f"worker-{lane}"]["containers"]
    assert trigger["metadata"]["targetQueryValue"] == container["args"][-1]


async def test_the_scaling_query_counts_what_is_due_or_under_way_in_open_datasets(database: str) -> None:
    engine = connect_async(database, size=2)
    hand = Hand(engine)
    first, closed = await hand.dataset("B1"), await hand.dataset("B2")
    ids = await hand.samples(first, 6)
    await hand.samples(first, 2, lane=Lane.LONG, prefix="l")
    await hand.samples(closed, 9)
    held = await hand.claim(ids[:3])
    await hand.settle(ended(held[ids[0]], Event.SNOOZE, "http_429", wait_s=600), ended(held[ids[1]], Event.DROP, "refused"))
    await hand.do(datasets.close, closed, "operator")
    counts = {}
    for lane in ("short", "long"):
        query = SCALED[f"worker-{lane}"]["triggers"][0]["metadata"]["query"]
        counts[lane] = (await hand.all(query))[0][0]
    await engine.dispose()
    assert counts == {"short": 4, "long": 2}
