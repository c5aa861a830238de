import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from models.errors import ServiceError
from ops import engine
from ops.engine import Engine
from ops.stack import Death, Stack

END_OF_TURN = 2     # <|im_end|> of SmolLM2


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


@pytest.fixture(scope="module")
def served(home: Path) -> Iterator[Engine]:
    """A small one, so that it is up in a second."""
    try:
        planned = engine.planned(home, slots=2, slot_tokens=512)
    except ServiceError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    with engine.serving(planned, home):
        yield planned


def ask(served: Engine, prompt: str, **more: Any) -> httpx.Response:
    body = {"model": served.name, "messages": [{"role": "user", "content": prompt}], "temperature": 0,
            "verbose": True, "return_tokens": True, **more}
    return httpx.post(f"{served.base_url}/chat/completions", json=body, timeout=60)


def test_a_cut_answer_comes_with_all_its_ids(served: Engine) -> None:
    reply = ask(served, "Count from one to twenty in words.", max_tokens=12).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert len(reply["__verbose"]["tokens"]) == reply["usage"]["completion_tokens"] == 12


def test_a_whole_answer_ends_with_the_end_token(served: Engine) -> None:
    reply = ask(served, "Say hello.", max_tokens=200).json()
    ids = reply["__verbose"]["tokens"]
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert len(ids) == reply["usage"]["completion_tokens"]
    assert ids[-1] == END_OF_TURN
    assert END_OF_TURN not in ids[:-1]
    assert reply["__verbose"]["prompt"].endswith("<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n")


def test_more_clients_than_slots_wait_and_are_all_answered(served: Engine) -> None:
    with ThreadPoolExecutor(6) as clients:
        replies = list(clients.map(lambda n: ask(served, f"Say {n}.", max_tokens=8), range(6)))
    assert [reply.status_code for reply in replies] == [200] * 6


def test_a_prompt_beyond_its_slot_is_refused_with_the_slots_size(served: Engine) -> None:
    reply = ask(served, "word " * 600, max_tokens=8)
    assert reply.status_code == 400
    assert reply.json()["error"]["n_ctx"] == served.slot_tokens == 512


def test_it_listens_on_the_loopback_shows_no_prompts_and_lets_no_web_page_in(served: Engine, home: Path) -> None:
    ask(served, "A secret_prompt.", max_tokens=4)
    ask(served, "secret_prompt " * 600, max_tokens=4)
    assert "secret_prompt" not in (home / "engine.log").read_text()
    assert httpx.get(f"{served.base_url.removesuffix('/v1')}/slots").status_code != 200
    reply = httpx.get(f"{served.base_url}/models", headers={"Origin": "http://page.example"})
    assert reply.headers.get("access-control-allow-origin", "") == ""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{served.port:04X}")]
    assert listening == [f"0100007F:{served.port:04X}"]


def test_the_port_is_kept_for_the_next_run_unless_it_is_taken(tmp_path: Path) -> None:
    first = engine.planned(tmp_path, model=Path("any.gguf"))
    assert engine.planned(tmp_path, model=Path("any.gguf")) == first
    assert json.loads((tmp_path / "engine.json").read_text())["base_url"] == first.base_url
    with socket.create_server(("127.0.0.1", first.port)):
        assert engine.planned(tmp_path, model=Path("any.gguf")).port != first.port


def test_a_file_that_is_no_model_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"no model")
    with pytest.raises(ServiceError, match="does not answer"), engine.serving(
            engine.planned(tmp_path, tmp_path / "bad.gguf"), tmp_path):
        pass


def test_the_supervisor_brings_a_killed_engine_back_in_its_place(served: Engine, tmp_path: Path) -> None:
    own = engine.planned(tmp_path, slots=1, slot_tokens=256)
    with Stack(tmp_path, [own.child()]) as running:
        own.wait()
        os.kill(running.pids()["engine"], signal.SIGKILL)
        seen: list[Death] = []

        def polled() -> bool:
            seen.extend(running.poll())
            return True

        while not seen:
            polled()
        own.wait(polled)
        assert [death.exit_code for death in seen] == [-signal.SIGKILL]
        assert ask(own, "Say hello.", max_tokens=4).status_code == 200
