"""Everything a client may look up besides asking: endpoints of a model, key, credits, generations, health, the ledger."""

from itertools import islice
from typing import TYPE_CHECKING, Any

from ops.simulator.behaviour import Host
from ops.simulator.connection import Connection, Request

if TYPE_CHECKING:
    from ops.simulator.app import Simulator

LINES = 2_000                 # ledger lines written between two turns of the loop
Found = tuple[int, dict[str, Any] | bytes]


def get(simulator: "Simulator", request: Request) -> Found:
    path = request.path
    match path.strip("/").split("/"):
        case ["health"] | [_, "health"] | ["health_generate"] | [_, "health_generate"]:
            return 200, {"status": "ok"}
        case ["metrics"] | [_, "metrics"]:
            return 200, _metrics(simulator)
        case ["ledger", "summary"]:
            summary = simulator.ledger.summary()
            return 200, summary | {"seconds": simulator.ledger.series()} if request.query.get("series") else summary
        case ["control"]:
            return 200, simulator.conditions.as_dict()
        case ["v1", "models"] | [_, "v1", "models"]:
            return 200, {"object": "list", "data": [{"id": "simulated", "object": "model", "max_model_len":
                                                     simulator.behaviour.context_length}]}
        case ["api", "v1", *rest]:
            return _account(simulator, rest, request)
    return 404, {"error": {"code": 404, "message": f"there is no {path[:100]}"}}


def _account(simulator: "Simulator", rest: list[str], request: Request) -> Found:
    if not simulator.conditions.admits_key(request.headers.get("authorization", "")):
        return 401, {"error": {"code": 401, "message": "User not found or key disabled"}}
    spent, credit = simulator.ledger.cost_usd, simulator.conditions.credit_usd
    match rest:
        case ["models", author, slug, "endpoints"]:
            endpoints = [_endpoint(simulator, host) for host in simulator.behaviour.hosts]
            return 200, {"data": {"id": f"{author}/{slug}", "name": slug, "created": 0, "description": "",
                                  "endpoints": endpoints}}
        case ["key"]:
            return 200, {"data": {"label": "simulated", "limit": credit, "limit_remaining": credit - spent, "limit_reset": None,
                                  "usage": spent, "usage_daily": spent, "is_free_tier": False, "budgets": [],
                                  "effective_budget": {"remaining_usd": credit - spent}, "rate_limit": {"requests": -1}}}
        case ["credits"]:
            return 200, {"data": {"total_credits": credit, "total_usage": spent}}
        case ["generation"]:
            return _generation(simulator, request.query.get("id", ""))
    return 404, {"error": {"code": 404, "message": "Not found"}}


def _endpoint(simulator: "Simulator", host: Host) -> dict[str, Any]:
    b = simulator.behaviour
    return {
        "name": f"{host.name} | simulated", "provider_name": host.name, "tag": f"{host.slug}/{host.quantization}",
        "quantization": host.quantization, "context_length": b.context_length,
        "max_completion_tokens": host.max_completion_tokens, "max_prompt_tokens": None,
        "pricing": {"prompt": f"{b.prompt_price * host.price:.10f}", "completion": f"{b.completion_price * host.price:.10f}",
                    "request": "0", "input_cache_read": "0", "discount": 0},
        "supported_parameters": ["max_tokens", "temperature", "top_p", "seed", "reasoning", "include_reasoning"],
        "uptime_last_5m": 100.0, "uptime_last_30m": 100.0, "uptime_last_1d": 100.0, "status": 0,
        "latency_last_30m": {"p50": b.first_token_s}, "throughput_last_30m": {"p50": b.tokens_per_s},
    }


def _generation(simulator: "Simulator", name: str) -> Found:
    record = simulator.generations.get(name)
    if record is None:
        return 404, {"error": {"code": 404, "message": "Generation not found"}}
    return 200, {"data": {
        "id": name, "upstream_id": None, "total_cost": record.cost, "usage": record.cost, "created_at": record.started,
        "model": "simulated", "streamed": record.stream, "cancelled": record.hung_up, "provider_name": record.provider,
        "tokens_prompt": record.prompt_tokens, "tokens_completion": record.completion_tokens,
        "native_tokens_prompt": record.prompt_tokens, "native_tokens_completion": record.completion_tokens,
        "native_tokens_reasoning": None, "native_tokens_cached": 0, "native_finish_reason": None, "finish_reason": None,
        "latency": None, "generation_time": round(1000 * (record.ended - record.started)),
        "provider_responses": [{"provider_name": record.provider, "status": record.status or 200}]}}


def _metrics(simulator: "Simulator") -> bytes:
    """The queue gauges of SGLang, vLLM and llama.cpp."""
    running, waiting = simulator.ledger.running, sum(not call.booked for call in simulator.queue)
    gauges = {"sglang:num_running_reqs": running, "sglang:num_queue_reqs": waiting,
              "vllm:num_requests_running": running, "vllm:num_requests_waiting": waiting,
              "llamacpp:requests_processing": running, "llamacpp:requests_deferred": waiting}
    return "".join(f"# TYPE {name} gauge\n{name} {value}\n" for name, value in gauges.items()).encode()


def send_ledger(connection: Connection, simulator: "Simulator", after: int) -> None:
    """All records as JSON lines, a part a turn, so that a long ledger does not stop the clock of the calls."""
    lines = simulator.ledger.lines(after)
    connection.start(200, {"content-type": "application/x-ndjson"})

    def part() -> None:
        if connection.closed:
            return
        if data := b"".join(islice(lines, LINES)):
            connection.chunk(data)
            simulator.loop.call_later(0.001, part)
        else:
            connection.end()

    part()
