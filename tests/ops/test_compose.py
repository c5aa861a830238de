"""The container files, checked without an engine: what they start exists, and nothing is open or fixed that must not be."""

from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from ops.cli import app

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: s for name, s in SERVICES.items() if str(s["image"]).startswith("draftmill")}


def test_the_fleet_is_complete() -> None:
    assert set(SERVICES) == {"redis", "postgres", "migrate", "worker-short", "worker-long", "reaper", "flower"}


@pytest.mark.parametrize("name", OURS)
def test_each_command_and_its_options_are_the_clis_own(name: str) -> None:
    words = OURS[name]["command"]
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert words[0] in commands
    options = {o for p in commands[words[0]].params for o in p.opts}
    assert {w for w in words[1:] if w.startswith("-")} <= options


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_says_how_it_is_and_nothing_forbids_scaling(name: str) -> None:
    service = SERVICES[name]
    assert "healthcheck" in service
    assert "container_name" not in service
    assert "hostname" not in service
    if name.startswith("worker"):
        assert "ports" not in service


def test_only_flower_is_published_and_only_on_the_loopback() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports == ["127.0.0.1:5555:5555"]


def test_passwords_are_asked_for_and_have_no_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    for name in ("POSTGRES_PASSWORD", "REDIS_PASSWORD", "FLOWER_PASSWORD"):
        assert f"${{{name}:?" in text
        assert f"${{{name}:-" not in text
    assert COMPOSE["secrets"] == {"api_key": {"file": "./key.txt"}}


def test_redis_keeps_what_it_is_given() -> None:
    command = " ".join(SERVICES["redis"]["command"])
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command


def test_workers_wait_for_the_tables_and_are_given_time_to_end() -> None:
    for name in ("worker-short", "worker-long"):
        assert SERVICES[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
        assert int(str(SERVICES[name]["stop_grace_period"]).removesuffix("s")) > 30


def test_the_image_is_not_root_and_holds_every_room() -> None:
    lines = (ROOT / "ops/Dockerfile").read_text().splitlines()
    assert "USER draftmill" in lines
    assert {f"COPY {room} {room}" for room in ("models", "producer", "workers", "ops")} <= set(lines)
