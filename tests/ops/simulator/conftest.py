import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from ops.simulator.process import Simulator

QUICK: dict[str, Any] = {"lengths": "uniform", "min_length": 20, "max_length": 200, "latency_min_s": 0.01, "latency_max_s": 0.05,
                         "refusal_s": 0.0}


class Client:
    """A person with curl: asks a simulator and reads what comes."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self._http = httpx.Client(timeout=20)

    def ask(self, prompt: str = "Name three primes.", *, at: str = "openrouter", key: str = "k", **fields: Any) -> httpx.Response:
        body = {"model": "moonshotai/kimi-k2.5", "messages": [{"role": "user", "content": prompt}], "max_tokens": 1_000, **fields}
        url = getattr(self.simulator, at) + "/chat/completions"
        return self._http.post(url, json=body, headers={"authorization": f"Bearer {key}"})

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return self._http.post(self.simulator.url + path, json=body)

    def get(self, path: str, key: str = "k") -> httpx.Response:
        return self._http.get(self.simulator.url + path, headers={"authorization": f"Bearer {key}"})

    def leave(self, prompt: str, **fields: Any) -> Callable[[], None]:
        """Ask and do not listen; the function hangs up."""
        url = urlsplit(self.simulator.openrouter)
        messages = [{"role": "user", "content": prompt}]
        body = json.dumps({"model": "m", "messages": messages, "max_tokens": 1_000, **fields}).encode()
        line = socket.create_connection((url.hostname, url.port or 80), timeout=10)
        line.sendall(b"POST %b/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
                     % (url.path.encode(), len(body), body))
        return line.close

    @staticmethod
    def events(reply: httpx.Response) -> list[dict[str, Any]]:
        """The data events of a stream, [DONE] left out."""
        lines = reply.text.split("\n")
        assert lines[-3:] == ["data: [DONE]", "", ""]
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

    @staticmethod
    def eventually(condition: Callable[[], bool], deadline_s: float = 10.0) -> None:
        """Until the condition holds; fails at the deadline."""
        end = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < end, "it did not come true"
            time.sleep(0.02)

    def close(self) -> None:
        self._http.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Client]]:
    """Starts simulators that end with the test; quick ones unless told otherwise."""
    with ExitStack() as stack:
        def begin(**options: Any) -> Client:
            client = Client(stack.enter_context(Simulator(**{**QUICK, **options})))
            stack.callback(client.close)
            return client

        yield begin


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """One quick simulator without faults for a whole file."""
    with Simulator(**QUICK) as simulator:
        asking = Client(simulator)
        yield asking
        asking.close()
