"""The container files, checked without an engine: what they start exists, and nothing is open or fixed that must not be."""

import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import redis
import typer
import yaml

from models.settings import Settings
from ops import port
from ops.cli import app
from ops.valkey import _binary

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: s for name, s in SERVICES.items() if str(s["image"]).startswith("draftmill")}
PLAIN = {"redis", "postgres", "migrate", "worker-short", "worker-long", "reaper", "flower"}
MONITORING = {"metrics", "prometheus", "grafana"}
# Of the Compose specification, what this file uses.
KEYS = {"image", "build", "command", "restart", "security_opt", "cap_drop", "cap_add", "networks", "read_only", "tmpfs", "user",
        "environment", "secrets", "volumes", "depends_on", "ulimits", "stop_grace_period", "healthcheck", "shm_size", "ports",
        "profiles"}
HEALTH = {"test", "interval", "timeout", "start_period", "retries", "disable"}
DURATION = re.compile(r"^(\d+h)?(\d+m)?(\d+s)?$")


def test_the_fleet_is_complete_and_monitoring_comes_when_asked_for() -> None:
    assert {n for n, s in SERVICES.items() if "profiles" not in s} == PLAIN
    assert {n for n, s in SERVICES.items() if s.get("profiles") == ["monitoring"]} == MONITORING


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_is_made_of_known_keys_and_names_only_what_the_file_has(name: str) -> None:
    service = SERVICES[name]
    assert set(service) <= KEYS
    assert set(service.get("networks", [])) <= set(COMPOSE["networks"])
    assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
    assert set(service.get("depends_on", {})) <= set(SERVICES)
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        assert source in COMPOSE["volumes"] or (ROOT / source).exists(), volume
    check = service["healthcheck"]
    assert set(check) <= HEALTH
    for key in ("interval", "timeout", "start_period"):
        assert key not in check or DURATION.match(check[key])


@pytest.mark.parametrize("name", OURS)
def test_each_command_and_its_options_are_the_clis_own(name: str) -> None:
    words = OURS[name]["command"]
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert words[0] in commands
    options = {o for p in commands[words[0]].params for o in p.opts}
    assert {w for w in words[1:] if w.startswith("-")} <= options


@pytest.mark.parametrize("name", OURS)
def test_each_variable_is_a_setting_and_each_file_it_names_is_a_secret_of_the_service(name: str) -> None:
    fields = {f"DRAFTMILL_{field.upper()}" for field in Settings.model_fields}
    for key, value in OURS[name]["environment"].items():
        assert key in fields or re.sub(r"_(PASSWORD_)?FILE$", "_URL", key) in fields or key.removesuffix("_FILE") in fields, key
        if key.endswith("_FILE"):
            assert str(value).removeprefix("/run/secrets/") in OURS[name]["secrets"], key


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_forbids_scaling(name: str) -> None:
    service = SERVICES[name]
    assert "container_name" not in service
    assert "hostname" not in service
    if name.startswith("worker"):
        assert "ports" not in service


@pytest.mark.parametrize("name", SERVICES)
def test_services_have_no_privileges_and_ours_write_only_to_their_home(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    if name in OURS:
        assert service["read_only"] is True
        assert "cap_add" not in service
        assert service["volumes"] == ["home:/var/lib/draftmill"]


def test_only_pages_are_published_and_only_on_the_loopback() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports == ["127.0.0.1:5555:5555", "127.0.0.1:3000:3000"]


def test_no_secret_is_a_variable_or_lies_in_the_repository() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert "${" not in text
    assert not re.search(r"(?m)^\s*\w*PASSWORD\w*(?<!_FILE):", text)
    assert all(s["file"].startswith("./secrets/") for s in COMPOSE["secrets"].values())
    assert "secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    assert "key" not in " ".join(str(s.get("secrets")) for n, s in OURS.items() if not n.startswith("worker"))


def test_redis_keeps_what_it_is_given_and_takes_its_password_from_a_file(tmp_path: Path) -> None:
    script = SERVICES["redis"]["command"][-1].replace("$$", "$")
    assert "--maxmemory-policy noeviction" in script
    secret, number = tmp_path / "secret", port.free()
    secret.write_text("from-a-file\n")
    script = script.replace("/run/secrets/redis", str(secret)).replace("--dir /data", f"--dir {tmp_path} --port {number}")
    process = subprocess.Popen(["sh", "-c", script.replace("valkey-server", str(_binary()), 1)], stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(port=number, password="from-a-file") as client, redis.Redis(port=number) as stranger:
            deadline = time.monotonic() + 20
            while True:
                try:
                    assert client.ping()
                    break
                except redis.ConnectionError:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            assert client.config_get("appendonly")["appendonly"] == "yes"
            assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
            with pytest.raises(redis.AuthenticationError):
                stranger.ping()
        assert b"from-a-file" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    finally:
        process.terminate()     # reaches the server itself: the shell has become it
        assert process.wait(20) == 0


def test_workers_wait_for_the_tables_and_are_given_time_to_end() -> None:
    for name in ("worker-short", "worker-long"):
        assert SERVICES[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
        assert int(str(SERVICES[name]["stop_grace_period"]).removesuffix("s")) > Settings().grace_s + 30


def test_prometheus_scrapes_the_metrics_service_with_the_token_of_its_secret() -> None:
    document = yaml.safe_load((ROOT / "ops/monitoring/prometheus.yml").read_text())
    [job] = document["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["metrics:9464"]}]
    assert job["authorization"]["credentials_file"].removeprefix("/run/secrets/") in SERVICES["prometheus"]["secrets"]
    assert document["rule_files"] == ["rules/draftmill.yml"]


def test_the_image_is_not_root_and_holds_every_room() -> None:
    lines = (ROOT / "ops/Dockerfile").read_text().splitlines()
    assert "USER 10001" in lines
    assert {f"COPY {room} {room}" for room in ("models", "producer", "workers", "ops")} <= set(lines)
