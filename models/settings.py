"""The one reader of the environment.

Every process asks `load()` once and passes what it needs on. URLs of services come from DRAFTMILL_DATABASE_URL and
DRAFTMILL_REDIS_URL, else from what `draftmill up` left in `.draftmill/services.json`. A secret `X` may stand in a file
instead: DRAFTMILL_X_FILE; passwords of URLs that hold none in DRAFTMILL_DATABASE_PASSWORD_FILE and DRAFTMILL_REDIS_PASSWORD_FILE.
"""

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from models.errors import SettingsError
from models.plan import Account

SERVICES = "services.json"
SECRETS = ("database_url", "redis_url", "flower_password", "metrics_token")


class Settings(BaseSettings):
    """Names are DRAFTMILL_ + the upper-case field name. Times are in seconds."""

    model_config = SettingsConfigDict(env_prefix="DRAFTMILL_", extra="ignore", frozen=True, secrets_dir=None)

    home: Path = Path(".draftmill")
    database_url: SecretStr | None = None
    redis_url: SecretStr | None = None
    flower_password: SecretStr | None = None
    flower_port: int = 5555
    metrics_token: SecretStr | None = None         # what a scraper from another machine must show
    api_key: SecretStr | None = None
    api_key_file: Path | None = None
    log_level: str = "INFO"
    key_prefix: str = Field("draftmill:", pattern=r"^[a-z0-9:_-]{1,32}$")
    hint_window: int = Field(2_000, ge=1)          # hints kept per queue
    heartbeat_s: float = 5.0
    dead_after_s: float = 20.0
    reap_every_s: float = 2.0
    grace_s: float = 30.0                          # SIGTERM: answers may finish for so long
    token_threads: int = 2
    traces_url: str | None = None                  # an OpenTelemetry collector: http://HOST:4318/v1/traces
    traces_share: float = Field(1.0, ge=0, le=1)   # of the samples

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource, dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings

    @model_validator(mode="before")
    @classmethod
    def _from_files(cls, given: Any) -> Any:
        """Secrets that stand in files, as containers are given them."""
        found = dict(given)
        for name in SECRETS:
            if not found.get(name) and (file := os.environ.get(f"DRAFTMILL_{name.upper()}_FILE")):
                found[name] = _first_line(Path(file))
        for name in ("database", "redis"):
            file, url = os.environ.get(f"DRAFTMILL_{name.upper()}_PASSWORD_FILE"), found.get(f"{name}_url")
            if file and url:
                plain = url.get_secret_value() if isinstance(url, SecretStr) else str(url)
                found[f"{name}_url"] = _with_password(plain, _first_line(Path(file)))
        return found

    def key_of(self, name: str, account: Account) -> SecretStr | None:
        """The account's key, read anew at each call so that a replaced file takes effect. White space around it is dropped.

        Sources, first found wins: DRAFTMILL_API_KEY_FILE_<NAME>, the account's own file, its variable,
        DRAFTMILL_API_KEY_FILE, DRAFTMILL_API_KEY.
        """
        own = os.environ.get(f"DRAFTMILL_API_KEY_FILE_{name.upper().replace('-', '_').replace('.', '_')}")
        for file in (Path(own) if own else None, account.api_key_file):
            if file is not None:
                return _read_key(file)
        if account.api_key_env:
            value = os.environ.get(account.api_key_env)
            if not value:
                raise SettingsError(cause=f"account {name!r} wants its key in ${account.api_key_env}, which is empty")
            return SecretStr(value.strip())
        if self.api_key_file is not None:
            return _read_key(self.api_key_file)
        return SecretStr(self.api_key.get_secret_value().strip()) if self.api_key else None


def _read_key(file: Path) -> SecretStr:
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(cause=f"the key file {file} cannot be read: {type(error).__name__}") from None
    if not key or not key.isascii() or any(c.isspace() for c in key):
        raise SettingsError(cause=f"the key file {file} must hold one key of printable ASCII")
    return SecretStr(key)


def _first_line(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(cause=f"the file {file} cannot be read: {type(error).__name__}") from None


def _with_password(url: str, password: str) -> str:
    """The URL as it is where it holds a password already."""
    parts = urlsplit(url)
    if parts.password or not parts.hostname:
        return url
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{parts.username or ''}:{quote(password, safe='')}@{host}").geturl()


def load(**overrides: Any) -> Settings:
    """Settings from the environment, completed by the services file of `home`. SettingsError names the field."""
    given = {k: v for k, v in overrides.items() if v is not None}
    try:
        settings = Settings(**given)
        missing = {k for k in ("database_url", "redis_url", "flower_password") if getattr(settings, k) is None}
        file = settings.home / SERVICES
        if missing and file.exists():
            known = json.loads(file.read_text(encoding="utf-8"))
            settings = Settings(**{**{k: known[k] for k in missing if known.get(k)}, **given})
        return settings
    except (ValidationError, json.JSONDecodeError) as error:
        first = error.errors(include_url=False, include_input=False)[0] if isinstance(error, ValidationError) else None
        cause = f"DRAFTMILL_{str(first['loc'][0]).upper()}: {first['msg']}" if first else f"{SERVICES} is not JSON"
        raise SettingsError(cause=cause) from None


def environment(**extra: str) -> dict[str, str]:
    """The environment for a child process, with `extra` on top."""
    return {**os.environ, **extra}
