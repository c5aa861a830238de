"""What stands while a run lasts: services, engine, workers, reaper and Flower under one supervisor."""

import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from rich.console import Console

from models.errors import DraftmillError, ServiceError, SettingsError
from models.plan import Plan
from models.settings import Settings, environment, load
from models.store.schema import migrate, reachable
from ops import engine, port, services
from ops.stack import Child, Death, Stack

Fleet = Mapping[str, tuple[int, int]]  # lane -> (worker processes, requests in flight of all of them together)


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
        reachable(url_of(settings))
        migrate(url_of(settings))
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


def url_of(settings: Settings) -> str:
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
        DRAFTMILL_DATABASE_URL=url_of(settings),
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
