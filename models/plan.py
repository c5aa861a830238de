"""A run as a person writes it: accounts, datasets, lanes, budgets. `draftmill.toml`, with flags on top.

    [accounts.openrouter]
    kind = "openrouter"
    base_url = "https://openrouter.ai/api/v1"
    api_key_file = "key.txt"

    [datasets.B1]
    prompts = "prompts/B1.jsonl"
    profile = "kimi-k2.5"
    model = "moonshotai/kimi-k2.5"
    account = "openrouter"
    token_budget = 10_000_000

What a dataset's rows depend on (not its prompts, budgets or concurrency) is its `fingerprint`.
"""

import hashlib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from models.errors import SettingsError
from models.names import checked
from models.urls import url_of

Kind = Literal["openrouter", "sglang", "vllm", "llamacpp", "embedded"]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Account(Part):
    """One endpoint plus one key: what rate limits and credit belong to. The key itself is never stored with it."""

    kind: Kind = "openrouter"
    base_url: str = "https://openrouter.ai/api/v1"
    api_key_file: Path | None = None
    api_key_env: str | None = None      # the name of a variable, not its value
    max_in_flight: int = Field(5_000, ge=1, le=100_000)
    slow_start: bool | None = None      # probe the capacity from below; by default for hosted accounts only

    @field_validator("base_url")
    @classmethod
    def _url(cls, url: str) -> str:
        if url and not url.startswith(("http://", "https://")):
            raise ValueError("base_url must begin with http:// or https://")
        if "@" in url.split("//", 1)[-1].split("/", 1)[0]:
            raise ValueError("base_url must not hold a password; use api_key_file")
        return url.rstrip("/")


class LanePlan(Part):
    max_tokens: int = Field(ge=1, le=1_000_000)
    concurrency: int = Field(ge=1, le=10_000)
    stream: bool | None = None          # by default in the long lane, where a stream that is left is billed no further
    deadline_s: float | None = Field(None, gt=0)    # of one call, whatever it is doing; by default what max_tokens may take


class LaneRule(Part):
    """Which lane a row without an explicit `lane` takes: long from so many prompt characters on, else `default`."""

    default: Literal["short", "long"] = "short"
    long_from_chars: int | None = Field(None, ge=1)


class Choice(Part):
    """One value of a sampling setting that is drawn per sample, with its weight."""

    value: float | int | str
    weight: float = Field(1.0, gt=0)


class Sampling(Part):
    """Fixed values or lists to draw from; the draw depends on the sample's key alone."""

    temperature: float | list[Choice] | None = None
    top_p: float | list[Choice] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    reasoning_effort: str | list[Choice] | None = None
    seed: int | None = None


class Routing(Part):
    """OpenRouter's `provider` object. FP4 is excluded by an allow-list, since a blacklist of names is not enough."""

    order: list[str] | None = None
    only: list[str] | None = None
    ignore: list[str] | None = None
    quantizations: list[str] | None = None
    require_parameters: bool | None = None
    allow_fallbacks: bool | None = None
    data_collection: Literal["allow", "deny"] | None = None
    zdr: bool | None = None
    sort: str | None = None
    max_price: dict[str, float] | None = None
    enforce_distillable_text: bool | None = None

    def body(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


NO_FP4 = ["int4", "int8", "fp6", "fp8", "mxfp8", "fp16", "bf16", "fp32"]


def admits(quantizations: Sequence[str], served: str) -> bool:
    """Whether a precision is among those listed; to OpenRouter `fp4` means both its kinds too."""
    return served in quantizations or ("fp4" in quantizations and served in ("mxfp4", "nvfp4"))


class DatasetPlan(Part):
    prompts: list[Path] = []
    profile: str
    model: str
    account: str | list[str] | dict[str, float]   # one name; several, each used when those before are full; or with weights
    usd_per_million_tokens: float = Field(10.0, gt=0)   # reserves money until the ledger knows better
    token_budget: int | None = Field(None, ge=1)
    money_budget_usd: float | None = Field(None, gt=0)
    budget_mode: Literal["strict", "forecast"] = "strict"
    short: LanePlan = LanePlan(max_tokens=10_240, concurrency=2_000)
    long: LanePlan = LanePlan(max_tokens=16_384, concurrency=500)
    lane_rule: LaneRule = LaneRule()
    turns: Literal["last", "all"] = "last"
    answers: int = Field(1, ge=1, le=1_000)     # to each prompt, each with its own draw of the sampling settings
    thinking: bool | None = None
    reasoning: dict[str, Any] | None = None
    sampling: Sampling = Sampling()
    routing: Routing = Routing()
    promote: bool = True
    max_attempts: int = Field(4, ge=1, le=100)          # of a sample that end in a failure; waits for a limit are none
    max_possibly_paid: int = Field(2, ge=1, le=100)     # of those: calls that may have been billed though their reply was lost
    waste_bound: float = Field(0.5, ge=0)   # billed but not stored, as a share of the token budget
    context_tokens: int | None = Field(None, ge=1)      # the model's; by default the profile's
    dedup: Literal["exact", "near"] | None = None       # ask once what is asked twice
    near: float = Field(0.8, gt=0, le=1)                # how much of two prompts' 5-word runs are the same, for dedup = near
    decontaminate: list[Path] = []                      # files of prompts that must not be asked
    ngram: int = Field(13, ge=1, le=100)                # words in a row that make a prompt one of those

    @model_validator(mode="before")
    @classmethod
    def _without_fp4(cls, given: Any) -> Any:
        """One host serves fp8 for one model and fp4 for another, so Kimi's rows come from an allow-list unless told otherwise."""
        routing = given.get("routing") if isinstance(given, dict) else None
        if isinstance(given, dict) and str(given.get("profile", "")).startswith("kimi-"):
            asked = routing.model_dump(exclude_none=True) if isinstance(routing, Routing) else dict(routing or {})
            if asked.get("quantizations") is None:
                return {**given, "routing": {**asked, "quantizations": NO_FP4}}
        return given

    @field_validator("account")
    @classmethod
    def _some_account(cls, value: str | list[str] | dict[str, float]) -> str | list[str] | dict[str, float]:
        if not value or (isinstance(value, dict) and (min(value.values()) < 0 or not sum(value.values()))):
            raise ValueError("account must name one at least, and weights must be above 0")
        return value

    @field_validator("prompts", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str | Path) else value

    def account_names(self) -> list[str]:
        return [self.account] if isinstance(self.account, str) else list(self.account)

    def account_weights(self) -> list[float] | None:
        """In the order of the names; None where the order itself decides."""
        return list(self.account.values()) if isinstance(self.account, dict) else None

    def lane(self, label: str) -> LanePlan:
        return self.short if label == "short" else self.long

    def fingerprint(self) -> dict[str, Any]:
        """The settings that make rows differ, JSON-ready; compared name by name before datasets are mixed."""
        settings: dict[str, Any] = json.loads(self.model_dump_json(
            include={"profile", "model", "turns", "thinking", "reasoning", "sampling", "routing"}))
        return settings

    def fingerprint_id(self) -> str:
        return hashlib.sha256(json.dumps(self.fingerprint(), sort_keys=True).encode()).hexdigest()[:16]


class Plan(Part):
    accounts: dict[str, Account] = {}
    datasets: dict[str, DatasetPlan] = {}
    output_dir: Path = Path("out")
    money_budget_usd: float | None = Field(None, gt=0)      # of all datasets together, beside their own

    @model_validator(mode="after")
    def _names(self) -> "Plan":
        seen: set[str] = set()
        for name in [*self.accounts, *self.datasets]:
            checked(name)
        for name, dataset in self.datasets.items():
            if name.lower() in seen:
                raise ValueError(f"two datasets are called {name!r} but for upper and lower case")
            seen.add(name.lower())
            for account in dataset.account_names():
                if account not in self.accounts:
                    raise ValueError(f"dataset {name!r} names the account {account!r}, which the plan does not have")
        return self


def read(path: Path) -> Plan:
    """A plan from TOML; SettingsError names file, place and cause. Relative paths are relative to the plan's folder."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(cause=f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(cause=f"{path}: {error}") from error
    try:
        plan = Plan.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(p) for p in first["loc"]) or "plan"
        raise SettingsError(cause=f"{path}: {place}: {first['msg']}") from error
    return plan.model_copy(update={
        "accounts": {n: a.model_copy(update={"api_key_file": _under(path, a.api_key_file)}) for n, a in plan.accounts.items()},
        "datasets": {n: d.model_copy(update={"prompts": [_under(path, p) for p in d.prompts],
                                             "decontaminate": [_under(path, p) for p in d.decontaminate]})
                     for n, d in plan.datasets.items()},
        "output_dir": _under(path, plan.output_dir),
    })


def _under(plan_file: Path, path: Path | None) -> Path | None:
    return path if path is None or path.is_absolute() or url_of(path) else plan_file.parent / path
