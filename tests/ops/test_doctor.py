"""Doctor finds what is planted, names the remedy, and finds nothing where nothing is wrong."""

import asyncio
import os
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import Request, urlopen

import psycopg
import pytest
import redis
from pydantic import SecretStr

from models.base import connect_async
from models.plan import Account, DatasetPlan
from models.settings import Settings
from models.states import Event
from models.store import datasets, sweeps
from models.store.settlements import Settlement
from models.tokens.model import Model
from models.tokens.profile import Profile
from ops import doctor
from ops.bench.rig import Rig
from ops.checks import machine, services
from ops.checks.finding import Finding
from ops.simulator.process import Simulator
from tests.hand import Hand
from workers.spool import Spool

KEY = "sk-or-test-0123456789abcdef"
HEAD = max(f.name[:4] for f in (Path(doctor.__file__).parents[1] / "models/migrations/versions").glob("0*.py"))


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    with Simulator(profile="smollm2") as running:
        yield running


class Place:
    """A home, a plan and settings in which all is well; a plant spoils one thing."""

    def __init__(self, folder: Path, database: str, redis_url: str, simulator: Simulator) -> None:
        self.folder, self.database, self.simulator = folder, database, simulator
        self.key = folder / "key.txt"
        self.key.write_text(KEY + "\n")
        self.key.chmod(0o600)
        (folder / "prompts.jsonl").write_text('{"prompt": "why?"}\n')
        self.account: dict[str, Any] = {"kind": "openrouter", "base_url": simulator.openrouter, "api_key_file": "key.txt"}
        self.dataset: dict[str, Any] = {"prompts": "prompts.jsonl", "profile": "smollm2", "model": "a/model", "account": "router",
                                        "token_budget": 1_000_000}
        self.settings: dict[str, Any] = {"database_url": SecretStr(database), "redis_url": SecretStr(redis_url), "flower_port": 1,
                                         "home": folder / "home", "flower_password": SecretStr("long-enough-password")}
        (folder / "home").mkdir()

    def query(self, statement: str) -> None:
        with psycopg.connect(self.database.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(statement.encode())

    def hand(self, work: Callable[[Hand], Any]) -> Any:
        async def run() -> Any:
            engine = connect_async(self.database, size=2)
            try:
                return await work(Hand(engine))
            finally:
                await engine.dispose()
        return asyncio.run(run())

    def examine(self) -> list[Finding]:
        rig = Rig(self.folder)
        plan = rig.plan({"accounts": {"router": self.account}, "datasets": {"B1": self.dataset}})
        return doctor.examine(Settings(**self.settings), plan)


@pytest.fixture(scope="module")
def one_database(new_database: Callable[[], str]) -> str:
    return new_database()


@pytest.fixture(scope="module")
def known_models() -> dict[str, Model]:
    return {}


@pytest.fixture(autouse=True)
def opened_once(known_models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """A vocabulary that was opened well is not opened again for each plant."""
    real = Model.open

    def once(profile: Profile) -> Model:
        key = profile.model_dump_json()
        known_models[key] = known_models.get(key) or real(profile)
        return known_models[key]

    monkeypatch.setattr(Model, "open", once)


@pytest.fixture
def place(tmp_path: Path, one_database: str, redis_url: str, simulator: Simulator) -> Iterator[Place]:
    place = Place(tmp_path, one_database, redis_url, simulator)
    yield place
    place.query("truncate dataset, worker cascade")
    place.query("update alembic_version set version_num = '9999'".replace("9999", HEAD))


Patch = pytest.MonkeyPatch


def wrong_database_password(place: Place, _: Patch) -> None:
    url = place.database
    place.settings["database_url"] = SecretStr(url.replace(url.split(":")[2].split("@")[0], "wrong"))


def wrong_redis_password(place: Place, _: Patch) -> None:
    url = place.settings["redis_url"].get_secret_value()
    place.settings["redis_url"] = SecretStr(url.replace(url.split(":")[2].split("@")[0], "wrong"))


def eviction(place: Place, _: Patch) -> None:
    with redis.Redis.from_url(place.settings["redis_url"].get_secret_value()) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")


def key_missing(place: Place, _: Patch) -> None:
    place.key.unlink()


def key_readable(place: Place, _: Patch) -> None:
    place.key.chmod(0o644)


def key_of_two_lines(place: Place, _: Patch) -> None:
    place.key.write_text(f"{KEY}\nand more\n")


def key_refused(place: Place, _: Patch) -> None:
    with urlopen(Request(f"{place.simulator.openrouter}/key", headers={"Authorization": f"Bearer {KEY}"}), timeout=30):
        place.simulator.control(revoke_keys=True)


def wrong_path(place: Place, _: Patch) -> None:
    place.account["base_url"] = place.simulator.url + "/api"


def nobody_there(place: Place, _: Patch) -> None:
    place.account["base_url"] = "http://127.0.0.1:9/v1"


def wrong_ids(place: Place, _: Patch) -> None:
    profile = Path(machine.__file__).parents[2] / "models/tokens/profiles/smollm2.toml"
    spoilt = place.folder / "mine.toml"
    spoilt.write_text(profile.read_text().replace('"<|im_end|>" = 2', '"<|im_end|>" = 7'))
    place.dataset["profile"] = str(spoilt)


def no_profile(place: Place, _: Patch) -> None:
    place.dataset["profile"] = "nobodys-model"


def fp4(place: Place, _: Patch) -> None:
    place.dataset.update(profile="kimi-of-nobody", routing={"quantizations": ["fp4", "fp8"]})


def no_disk(_: Place, patch: Patch) -> None:
    patch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=100 * 1024**2))  # type: ignore[attr-defined]


def few_files(_: Place, patch: Patch) -> None:
    patch.setattr(machine.resource, "getrlimit", lambda _: (256, 1024))  # type: ignore[attr-defined]


def no_reaper(place: Place, _: Patch) -> None:
    place.hand(lambda hand: hand.do(sweeps.join, name="short-1", host="a", pid=1, lane=0, concurrency=8))


def silent_worker(place: Place, _: Patch) -> None:
    no_reaper(place, _)
    place.query("update worker set heartbeat_at = clock_timestamp() - interval '5 minutes'")


def spool_of_a_worker(place: Place, _: Patch) -> None:
    async def beat(hand: Hand) -> None:
        worker = await hand.do(sweeps.join, name="short-1", host="a", pid=1, lane=0, concurrency=8)
        await hand.do(sweeps.beat, worker, 0, {"spool": 12})
    place.hand(beat)


def spool_of_the_dead(place: Place, _: Patch) -> None:
    async def keep() -> None:
        spool = Spool(place.folder / "home/spool/0123456789ab", "1")
        await spool.keep([Settlement(1, 1, Event.RETRY, "http_500")])
        spool.close()
    asyncio.run(keep())


def refused_answer(place: Place, _: Patch) -> None:
    folder = place.folder / "home/spool/0123456789ab"
    folder.mkdir(parents=True)
    (folder / "refused-1-1.json").write_text("{}")


def no_tables(place: Place, _: Patch) -> None:
    place.query("create database empty")
    place.settings["database_url"] = SecretStr(place.database.rsplit("/", 1)[0] + "/empty")


def small_budget(place: Place, _: Patch) -> None:
    place.dataset["token_budget"] = 5_000


def no_prompts(place: Place, _: Patch) -> None:
    (place.folder / "prompts.jsonl").unlink()


def services_file(place: Place, _: Patch) -> None:
    file = place.folder / "home/services.json"
    file.write_text("{}")
    file.chmod(0o644)


def of_a_stored_dataset(place: Place, _: Patch) -> None:
    gone = {"gone": Account(kind="vllm", base_url="http://127.0.0.1:9/v1")}
    place.hand(lambda hand: hand.whole(datasets.put, "old", DatasetPlan(profile="smollm2", model="a/m", account="gone"), gone))


PLANTED: dict[Callable[[Place, Patch], None], tuple[str, str]] = {
    wrong_database_password: ("PostgreSQL refuses the user or password", "password that the server was made with"),
    wrong_redis_password: ("Redis refuses the password", "requirepass"),
    eviction: ("evicts keys (maxmemory-policy allkeys-lru)", "maxmemory-policy noeviction"),
    key_missing: ("key.txt cannot be read", "put the key there"),
    key_readable: ("can be read by others", "chmod 600"),
    key_of_two_lines: ("must hold one key", "on one line"),
    key_refused: ("refuses the key (HTTP 401)", "valid key"),
    wrong_path: ("has no list of models (HTTP 404)", "https://openrouter.ai/api/v1"),
    nobody_there: ("cannot be reached (refused)", "is base_url right"),
    wrong_ids: ("ids do not resolve", "mend the profile's [ids]"),
    no_profile: ("there is no such profile", "tokenizer"),
    fp4: ("admits fp4", "leave routing.quantizations out"),
    no_disk: ("100 MB free", "free some disk"),
    few_files: ("only 1024 open files", "ulimit"),
    no_reaper: ("no reaper leads", "draftmill reaper"),
    silent_worker: ("has not beaten for 30", "draftmill reaper"),
    spool_of_a_worker: ("12 paid answers wait in the spool of short-1 on a", "is the database reachable"),
    spool_of_the_dead: ("1 paid answers of workers that are gone", "draftmill worker short"),
    refused_answer: ("1 answers that the database refused", "look at them"),
    no_tables: ("has no tables yet", "draftmill migrate"),
    small_budget: ("its budget of 5,000 tokens is smaller than one answer", "raise token_budget"),
    no_prompts: ("there are no prompts at", "mend the path"),
    services_file: ("holds passwords and others may read it", "chmod 600"),
    of_a_stored_dataset: ("account gone: http://127.0.0.1:9/v1 cannot be reached", "is base_url right"),
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_what_is_planted_is_found_with_its_remedy(plant: Callable[[Place, Patch], None], place: Place,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    what, remedy = PLANTED[plant]
    try:
        plant(place, monkeypatch)
        found = [f for f in place.examine() if f.bad and what in f.what]
        assert len(found) == 1, [f.what for f in place.examine() if f.bad]
        assert remedy in found[0].remedy
        assert KEY not in found[0].what + found[0].remedy
    finally:
        if plant is eviction:
            with redis.Redis.from_url(place.settings["redis_url"].get_secret_value()) as client:
                client.config_set("maxmemory-policy", "noeviction")
        if plant is key_refused:
            place.simulator.control(revoke_keys=False)


def test_where_all_is_well_nothing_is_bad(place: Place) -> None:
    found = place.examine()
    assert [f.what for f in found if f.bad] == []
    assert any("answers" in f.what for f in found)
    assert all(f.remedy for f in found if f.level != "ok")


def test_a_clock_that_is_off_is_said_to_be_harmless(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    real = services.time.time
    monkeypatch.setattr(services, "time", SimpleNamespace(time=lambda: real() + 7_200))
    [found] = [f for f in place.examine() if "machine's clock" in f.what]
    assert found.level == "note"
    assert "7,200 s off the database's: harmless" in found.what


def test_a_database_of_a_newer_version_is_a_note(place: Place) -> None:
    place.query("update alembic_version set version_num = '9999'")
    [found] = [f for f in place.examine() if "newer than this draftmill" in f.what]
    assert found.level == "note"
    assert "9999" in found.what


class Page(BaseHTTPRequestHandler):
    password = ""

    def do_GET(self) -> None:
        wanted = "Basic " + b64encode(f"draftmill:{self.password}".encode()).decode()
        self.send_response(200 if not self.password or self.headers.get("Authorization") == wanted else 401)
        self.end_headers()
        self.wfile.write(b"<title>Flower</title>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("password", ["", "secret"])
def test_a_flower_that_answers_anybody_is_found(place: Place, password: str) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Page,), {"password": password}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place.settings["flower_port"] = server.server_port
    try:
        found = [f for f in place.examine() if f.bad]
    finally:
        server.shutdown()
        server.server_close()
    assert [f.what for f in found] == ([] if password else [f"Flower on port {server.server_port} answers without a password"])


def test_a_containers_secrets_are_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "api_key"
    secret.write_text(KEY)
    os.chmod(secret, 0o644)
    assert machine.readable_by_others(secret)
    monkeypatch.setattr(machine, "SECRETS", (tmp_path,))
    assert not machine.readable_by_others(secret)
