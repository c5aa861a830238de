"""`draftmill run` and `draftmill up`: bring everything up, put prompts in, follow, export, sum up."""

import asyncio
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live

from models.base import connect, connect_async, transaction
from models.errors import DraftmillError, ServiceError, SettingsError, StoreAway
from models.hint import Hints
from models.plan import Plan
from models.settings import Settings, environment, load
from models.states import DatasetState
from models.store import datasets as store
from models.store import purses, spending, totals
from models.store.schema import migrate, reachable
from models.store.totals import DatasetTotals
from ops import engine, port, services, tables
from ops.stack import Child, Death, Stack
from producer.enqueue import Enqueued, enqueue, hint

LOOK_EVERY_S = 1.0
PLAIN_EVERY_S = 10.0
Fleet = Mapping[str, tuple[int, int]]  # lane -> (worker processes, requests in flight of all of them together)


def run(settings: Settings, plan: Plan, short_workers: int, long_workers: int, *, mix: bool, export: bool) -> int:
    """0 when every dataset is finished or at its budget; 1 when one was closed for another reason or has failed samples."""
    console = Console()
    fleet = {
        "short": (short_workers, max(d.short.concurrency for d in plan.datasets.values())),
        "long": (long_workers, max(d.long.concurrency for d in plan.datasets.values())),
    }
    names = list(plan.datasets)
    with standing(settings, plan, fleet, console) as live:
        try:
            for result in asyncio.run(put_in(live.settings, live.plan, mix=mix)):
                console.print(_entered(result))
            found = follow(live, names, console)
        except KeyboardInterrupt:
            console.print("\nstopping; answers under way may still arrive. The same command goes on from here.")
            return 130
        if export:
            from ops.exporting import export_datasets

            _grade_again(live.settings, found, console)
            for line in export_datasets(
                connect(_url(live.settings)), names, plan.output_dir, ["tokens"], "verified", 0.05, False, live.settings.home
            ):
                console.print(line)
        found = _totals(live.settings, names)
    summary(found, console)
    return 0 if all(d.finished or d.closed_reason in ("budget", "money") for d in found) else 1


def _grade_again(settings: Settings, found: list[DatasetTotals], console: Console) -> None:
    """Text-only rows are verified once their providers' conventions are known, which takes some rows of each."""
    from ops.grading import calibrate, regrade

    names = [d.name for d in found if set(d.grades) - {"engine", "logprobs"}]
    if not names:
        return
    console.print("learning how the providers count, and grading the rows by it")
    database = connect(_url(settings), size=2)
    for _ in calibrate(database, names, settings.home):
        pass
    for name, looked, changed in regrade(database, names, settings.home):
        console.print(f"{name}: {looked} rows graded again, {changed} changed", highlight=False)


def _totals(settings: Settings, names: list[str]) -> list[DatasetTotals]:
    with transaction(connect(_url(settings), size=1)) as connection:
        found = totals.datasets(connection, names)
        spending.add(connection, found)
        return found


def up(settings: Settings, plan: Plan, fleet: Fleet, *, flower: bool) -> int:
    """Stand until a signal comes."""
    console = Console()
    with standing(settings, plan, fleet, console, flower=flower):
        console.print("up; stop with Ctrl-C. In this folder: draftmill enqueue, status, requeue, export")
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            console.print("\nstopping")
    return 0


@dataclass(slots=True)
class Standing:
    """What runs: settings with the URLs in force, the plan with the engine's address, and who died lately."""

    settings: Settings
    plan: Plan
    deaths: deque[Death] = field(default_factory=lambda: deque(maxlen=20))


def _stop_like_ctrl_c(*_: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def standing(settings: Settings, plan: Plan, fleet: Fleet, console: Console, *, flower: bool = True) -> Iterator[Standing]:
    """Services (embedded unless URLs are set), engine, workers, reaper and Flower under one supervisor.

    Joins an `up` that already runs in this home instead of starting a second one.
    """
    signal.signal(signal.SIGTERM, _stop_like_ctrl_c)
    with ExitStack() as stack:
        running = None
        if urls_from_environment(settings) is None:
            running = _services(settings, stack)
            if running is None:
                console.print("joining the services and workers that already run here")
                yield Standing(load(home=settings.home), _joined_engine(plan, settings))
                return
            settings = load(home=settings.home)
        reachable(_url(settings))
        migrate(_url(settings))
        plan, engines = _with_engine(plan, settings)
        if flower:
            settings = settings.model_copy(update={"flower_port": port.free(settings.flower_port)})
        live = Standing(settings, plan)
        family = Stack(settings.home, [*(e.child() for e in engines), *children(settings, fleet, flower=flower)])
        stack.enter_context(_supervised(family, running, live))
        for engine in engines:
            console.print("waiting for the embedded engine (SmolLM2-135M on llama.cpp)")
            engine.wait()
        if flower and settings.flower_password is not None:
            console.print(
                f"Flower: http://127.0.0.1:{settings.flower_port}  user draftmill, password "
                f"{settings.flower_password.get_secret_value()}",
                highlight=False,
                soft_wrap=True,
            )
        yield live


def _services(settings: Settings, stack: ExitStack) -> services.Services | None:
    """Started here, or None when another process of this home runs them."""
    try:
        return stack.enter_context(services.start(settings.home))
    except ServiceError as error:
        if "another draftmill process" not in str(error) or settings.database_url is None:
            raise
        return None


@contextmanager
def _supervised(family: Stack, running: services.Services | None, live: Standing) -> Iterator[None]:
    """A thread of its own restarts what dies, also while this one reads a gigabyte of prompts."""
    over, up = threading.Event(), threading.Event()
    failure: list[DraftmillError] = []

    def supervise() -> None:
        try:
            family.start()
        except DraftmillError as error:
            failure.append(error)
            return
        finally:
            up.set()
        while not over.wait(0.5):
            live.deaths.extend(family.poll())
            if running is not None:
                running.restart_dead()
        family.stop()

    thread = threading.Thread(target=supervise, name="supervisor", daemon=True)
    thread.start()
    up.wait()
    if failure:
        raise failure[0]
    try:
        yield
    finally:
        over.set()
        thread.join()


def urls_from_environment(settings: Settings) -> str | None:
    """The database URL that the environment itself sets, whatever the services file says."""
    given = Settings(home=settings.home)
    if (given.database_url is None) != (given.redis_url is None):
        raise SettingsError(cause="set both DRAFTMILL_DATABASE_URL and DRAFTMILL_REDIS_URL, or neither")
    return given.database_url.get_secret_value() if given.database_url else None


def _url(settings: Settings) -> str:
    if settings.database_url is None:
        raise SettingsError(cause="no database: set DRAFTMILL_DATABASE_URL, or start `draftmill up` in this folder")
    return settings.database_url.get_secret_value()


def _with_engine(plan: Plan, settings: Settings) -> tuple[Plan, list[engine.Engine]]:
    """Accounts of kind `embedded` get the address of a real small engine, to be started here."""
    if not any(account.kind == "embedded" for account in plan.accounts.values()):
        return plan, []
    served = engine.planned(settings.home)
    return _addressed(plan, served.base_url), [served]


def _joined_engine(plan: Plan, settings: Settings) -> Plan:
    if not any(account.kind == "embedded" for account in plan.accounts.values()):
        return plan
    address = engine.address(settings.home)
    if address is None:
        raise SettingsError(cause="the running `draftmill up` has no embedded engine; start it with this plan: up --plan FILE")
    return _addressed(plan, address)


def _addressed(plan: Plan, base_url: str) -> Plan:
    accounts = {n: a.model_copy(update={"base_url": base_url}) if a.kind == "embedded" else a for n, a in plan.accounts.items()}
    return plan.model_copy(update={"accounts": accounts})


def children(settings: Settings, fleet: Fleet, *, flower: bool) -> list[Child]:
    """Secrets go to them through the environment, never on a command line."""
    assert settings.redis_url is not None
    env = environment(
        DRAFTMILL_DATABASE_URL=_url(settings),
        DRAFTMILL_REDIS_URL=settings.redis_url.get_secret_value(),
        DRAFTMILL_HOME=str(settings.home.absolute()),
        DRAFTMILL_FLOWER_PORT=str(settings.flower_port),
        **({"DRAFTMILL_FLOWER_PASSWORD": settings.flower_password.get_secret_value()} if settings.flower_password else {}),
    )
    command = [sys.executable, "-P", "-m", "ops"]  # -P: the working directory may hold another `models`
    found = [
        Child(
            f"{lane}-{i + 1}",
            [*command, "worker", lane, "-c", str(-(-in_flight // processes)), "-n", f"{lane}-{i + 1}"],
            env,
            settings.grace_s + 15,
        )
        for lane, (processes, in_flight) in fleet.items()
        for i in range(processes)
    ]
    found.append(Child("reaper", [*command, "reaper"], env, 5.0))
    if flower:
        found.append(Child("flower", [*command, "flower"], env, 3.0))
    return found


async def put_in(settings: Settings, plan: Plan, *, mix: bool = False, every: Mapping[str, int] | None = None) -> list[Enqueued]:
    """Datasets and their prompts, then hints. A dataset at its budget is skipped without reading its prompts.

    every: take one prompt in so many of these datasets only.
    """
    with transaction(connect(_url(settings), size=1)) as connection:
        ids = {name: store.put(connection, name, d, plan.accounts, mix=mix) for name, d in plan.datasets.items()}
        if plan.money_budget_usd is not None:
            purses.share(connection, ids.values(), plan.money_budget_usd)
        store.resume(connection, ids)
        known = {d.name: d for d in store.every(connection)}
    assert settings.redis_url is not None
    database = connect_async(_url(settings), size=2, worker=False)
    hints = Hints(settings.redis_url.get_secret_value(), settings.key_prefix)
    results = []
    try:
        for name, dataset in plan.datasets.items():
            if known[name].state is DatasetState.CLOSED:
                results.append(Enqueued(name, skipped=known[name].closed_reason or "closed"))
                continue
            rejects = settings.home / "rejects" / f"{name}.jsonl"
            one_in = (every or {}).get(name, 1)
            results.append(await enqueue(database, ids[name], name, dataset, dataset.prompts, rejects, every=one_in))
            await hint(database, hints, [name], settings.hint_window)
    finally:
        await hints.close()
        await database.dispose()
    return results


def _entered(result: Enqueued) -> str:
    if result.skipped:
        return f"{result.dataset}: skipped, closed: {result.skipped}"
    refused = f", {result.refused.total()} refused (see {result.rejects})" if result.rejects else ""
    return f"{result.dataset}: {result.rows} prompts, {result.new} new{refused}"


def follow(live: Standing, names: list[str], console: Console) -> list[DatasetTotals]:
    """Show progress until nothing more will happen by itself; a database that is away is waited for."""
    database = connect(_url(live.settings), size=1)
    found: list[DatasetTotals] = []
    with ExitStack() as stack:
        show = (
            _table(stack.enter_context(Live(console=console, refresh_per_second=4))) if console.is_terminal else _lines(console)
        )
        while not found or not all(d.settled for d in found):
            if found:
                time.sleep(LOOK_EVERY_S)
            try:
                with transaction(database) as connection:
                    found = totals.datasets(connection, names)
            except StoreAway as error:
                console.print(f"waiting for the database: {error}")
                time.sleep(LOOK_EVERY_S)
                continue
            show(found)
            while live.deaths:
                death = live.deaths.popleft()
                console.print(f"{death.name} ended ({death.exit_code}) and is started again", style="yellow")
    return found


def _table(screen: Live) -> Callable[[list[DatasetTotals]], None]:
    return lambda found: screen.update(tables.datasets(found))


def _lines(console: Console) -> Callable[[list[DatasetTotals]], None]:
    said = [-PLAIN_EVERY_S]

    def show(found: list[DatasetTotals]) -> None:
        if time.monotonic() - said[0] > PLAIN_EVERY_S or all(d.settled for d in found):
            for d in found:
                console.print(tables.line(d), highlight=False, soft_wrap=True)
            said[0] = time.monotonic()

    return show


def summary(found: list[DatasetTotals], console: Console) -> None:
    console.print()
    console.print(tables.datasets(found))
    console.print(tables.details(found))
