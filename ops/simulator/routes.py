"""Which path means what."""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from models.errors import SettingsError
from ops.simulator import ask, sides
from ops.simulator.call import Call
from ops.simulator.completions import LlamaCompletion, SGLangGenerate, VllmCompletion
from ops.simulator.connection import Connection, Request
from ops.simulator.dialects import Dialect, LlamaCpp, OpenRouter, SGLang, Vllm
from ops.simulator.refusals import JSON, bad_request

if TYPE_CHECKING:
    from ops.simulator.app import Simulator

CHATS: Mapping[str, Dialect] = {
    "/api/v1/chat/completions": OpenRouter(),
    "/v1/chat/completions": SGLang(),
    "/sglang/v1/chat/completions": SGLang(),
    "/vllm/v1/chat/completions": Vllm(),
    "/llamacpp/v1/chat/completions": LlamaCpp(),
}
CONTINUATIONS: Mapping[str, tuple[Callable[[bytes], ask.Asked], Dialect]] = {
    "/generate": (ask.generate, SGLangGenerate()),
    "/v1/completions": (ask.completion, VllmCompletion()),
    "/completion": (ask.completion, LlamaCompletion()),
}
_LLAMA = LlamaCpp()
PREFIXES = ("/sglang", "/vllm", "/llamacpp")


class Routes:
    def __init__(self, simulator: "Simulator") -> None:
        self._simulator = simulator

    def handle(self, connection: Connection, request: Request) -> None:
        if request.method == "POST":
            if (dialect := CHATS.get(request.path)) is not None:
                return self._call(connection, request, ask.chat, dialect)
            if (entry := CONTINUATIONS.get(_bare(request.path))) is not None:
                return self._call(connection, request, *entry)
            if request.path == "/control":
                return self._control(connection, request)
            if request.path == "/ledger/reset":
                self._simulator.ledger.reset()
                return _json(connection, 200, {"reset": True})
        if request.method == "GET" and request.path == "/ledger":
            return sides.send_ledger(connection, self._simulator, _number(request.query.get("after", "")))
        status, found = sides.get(self._simulator, request)
        if isinstance(found, bytes):
            return connection.respond(status, found, {"content-type": "text/plain"})
        return _json(connection, status, found)

    def _call(self, connection: Connection, request: Request, read: Callable[[bytes], ask.Asked], dialect: Dialect) -> None:
        try:
            asked = read(request.body)
        except ask.Unreadable as error:
            return _refuse(connection, error)
        if request.path == "/v1/chat/completions" and asked.body.get("verbose"):
            dialect = _LLAMA
        if isinstance(dialect, SGLang) and asked.stream and asked.body.get("return_token_ids"):
            return _json(connection, 400, {"object": "error", "message": "return_token_ids cannot be streamed",
                                           "type": "BadRequestError", "param": None, "code": 400})
        if sample := request.headers.get("x-sample-id"):
            asked = asked._replace(sample=sample[:128])
        try:
            call = Call(self._simulator, connection, dialect, asked)
        except ask.Unreadable as error:
            return _refuse(connection, error)
        return call.begin(request.headers.get("authorization", ""))

    def _control(self, connection: Connection, request: Request) -> None:
        simulator = self._simulator
        try:
            wanted = json.loads(request.body)
            if not isinstance(wanted, dict):
                raise SettingsError(cause="/control wants a JSON object")
            simulator.conditions.change(wanted, simulator.ledger.cost_usd)
        except (SettingsError, ValueError) as error:
            return _json(connection, 400, {"error": {"message": str(error)}})
        simulator.advance()
        return _json(connection, 200, simulator.conditions.as_dict())


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _bare(path: str) -> str:
    """The path without the engine's name in front."""
    for prefix in PREFIXES:
        if path.startswith(prefix + "/"):
            return path.removeprefix(prefix)
    return path


def _refuse(connection: Connection, error: ask.Unreadable) -> None:
    """A request that cannot be read stands in no ledger: no prompt can be named."""
    refused = bad_request(str(error))
    connection.respond(refused.status, refused.body, refused.headers)


def _json(connection: Connection, status: int, body: Mapping[str, Any]) -> None:
    connection.respond(status, json.dumps(body).encode(), JSON)
