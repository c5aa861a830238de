"""A simulator in a process of its own, for flows and benches."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self
from urllib.request import Request, urlopen

from models.errors import ServiceError
from ops.simulator.behaviour import Behaviour

START_S = 60.0
TIMEOUT_S = 60.0


class Simulator:
    """`with Simulator(capacity=800) as simulator:`; keywords are the fields of Behaviour (faults as a mapping).

    url: without a path; openrouter, sglang, vllm, llamacpp: base URLs as a plan's account wants them.
    """

    def __init__(self, *, port: int = 0, **options: Any) -> None:
        self._port, self._options = port, options
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def openrouter(self) -> str:
        return f"{self.url}/api/v1"

    @property
    def sglang(self) -> str:
        return f"{self.url}/sglang/v1"

    @property
    def vllm(self) -> str:
        return f"{self.url}/vllm/v1"

    @property
    def llamacpp(self) -> str:
        return f"{self.url}/llamacpp/v1"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """ServiceError if it does not come up."""
        with TemporaryDirectory() as folder:
            ready = Path(folder, "ready.json")
            command = [sys.executable, "-m", "ops.simulator", "--port", str(self._port), "--ready-file", str(ready),
                       *_flags(self._options)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            deadline = time.monotonic() + START_S
            while not ready.exists():
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise ServiceError(service="simulator", cause="did not start")
                time.sleep(0.02)
            self.url = str(json.loads(ready.read_text(encoding="utf-8"))["url"])
        return self

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def ledger(self, after: int = 0) -> list[dict[str, Any]]:
        """Every booked call since the last reset, from index `after` on."""
        return [json.loads(line) for line in self._ask(f"/ledger?after={after}").splitlines()]

    def summary(self, series: bool = False) -> dict[str, Any]:
        return dict(json.loads(self._ask("/ledger/summary" + ("?series=1" if series else ""))))

    def control(self, **verbs: Any) -> dict[str, Any]:
        """`control(outage={"fault": "503", "for_s": 60})`; answers with the conditions now."""
        return dict(json.loads(self._ask("/control", verbs)))

    def reset(self) -> None:
        self._ask("/ledger/reset", {})

    def _ask(self, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(self.url + path, data=data), timeout=TIMEOUT_S) as reply:
            return bytes(reply.read())


def _flags(options: Mapping[str, Any]) -> list[str]:
    known = {field.name for field in fields(Behaviour)} | {"fault_share"}
    flags: list[str] = []
    for name, value in options.items():
        if name not in known or name == "hosts":
            raise TypeError(f"the simulator has no option {name!r}")
        flag = f"--{name.replace('_', '-')}"
        if name == "faults":
            flags += [part for kind, share in value.items() for part in ("--fault", f"{kind}={share}")]
        elif isinstance(value, bool):
            flags += [flag] if value else []
        elif value is not None:
            flags += [flag, str(value)]
    return flags
