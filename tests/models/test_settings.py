"""The environment as settings: secrets from files and keys, and what is told when something cannot be used."""

from pathlib import Path

import pytest

from models.errors import SettingsError
from models.plan import Account
from models.settings import Settings, load


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "REDIS_URL", "FLOWER_PASSWORD", "METRICS_TOKEN", "HOME", "API_KEY", "API_KEY_FILE"):
        monkeypatch.delenv(f"DRAFTMILL_{name}", raising=False)


def secret(folder: Path, text: str) -> str:
    file = folder / "secret"
    file.write_text(text)
    return str(file)


def test_a_password_file_completes_a_url_that_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRAFTMILL_DATABASE_URL", "postgresql+psycopg://draftmill@postgres:5432/draftmill")
    monkeypatch.setenv("DRAFTMILL_REDIS_URL", "redis://redis:6379/0")
    monkeypatch.setenv("DRAFTMILL_DATABASE_PASSWORD_FILE", secret(tmp_path, "a/b@c\n"))
    monkeypatch.setenv("DRAFTMILL_REDIS_PASSWORD_FILE", secret(tmp_path, "a/b@c\n"))
    settings = load()
    assert settings.database_url is not None
    assert settings.redis_url is not None
    assert settings.database_url.get_secret_value() == "postgresql+psycopg://draftmill:a%2Fb%40c@postgres:5432/draftmill"
    assert settings.redis_url.get_secret_value() == "redis://:a%2Fb%40c@redis:6379/0"


def test_a_password_in_the_url_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRAFTMILL_REDIS_URL", "redis://:own@redis:6379/0")
    monkeypatch.setenv("DRAFTMILL_REDIS_PASSWORD_FILE", secret(tmp_path, "other"))
    settings = load()
    assert settings.redis_url is not None
    assert settings.redis_url.get_secret_value() == "redis://:own@redis:6379/0"


def test_secrets_come_from_files_unless_they_are_given_themselves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRAFTMILL_FLOWER_PASSWORD_FILE", secret(tmp_path, "from-file\n"))
    monkeypatch.setenv("DRAFTMILL_METRICS_TOKEN_FILE", secret(tmp_path, "from-file\n"))
    monkeypatch.setenv("DRAFTMILL_METRICS_TOKEN", "given")
    settings = load()
    assert settings.flower_password is not None
    assert settings.metrics_token is not None
    assert settings.flower_password.get_secret_value() == "from-file"
    assert settings.metrics_token.get_secret_value() == "given"


def test_a_file_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRAFTMILL_METRICS_TOKEN_FILE", str(tmp_path / "nothing"))
    with pytest.raises(SettingsError, match="nothing cannot be read"):
        load()


def test_a_variable_that_cannot_be_read_is_named_and_its_value_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTMILL_HINT_WINDOW", "hunter2")
    with pytest.raises(SettingsError, match="DRAFTMILL_HINT_WINDOW") as refusal:
        load()
    assert "hunter2" not in str(refusal.value)


def test_services_that_run_here_are_found_and_what_is_said_outright_counts_more(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".draftmill").mkdir()
    Path(".draftmill/services.json").write_text('{"database_url": "postgresql://found", "redis_url": "redis://found"}')
    monkeypatch.setenv("DRAFTMILL_REDIS_URL", "redis://told")
    settings = load()
    assert settings.database_url is not None
    assert settings.redis_url is not None
    assert (settings.database_url.get_secret_value(), settings.redis_url.get_secret_value()) == ("postgresql://found", "redis://told")


def test_a_services_file_that_was_cut_is_told_as_such() -> None:
    Path(".draftmill").mkdir()
    Path(".draftmill/services.json").write_text('{"database_url": ')
    with pytest.raises(SettingsError, match=r"services\.json is not JSON"):
        load()


def test_a_key_is_looked_for_in_its_order_and_read_anew_each_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRAFTMILL_API_KEY", " general ")
    file, own = tmp_path / "file", tmp_path / "own"
    settings = load()
    assert value(settings, Account()) == "general"
    monkeypatch.setenv("MINE", "variable\n")
    assert value(settings, Account(api_key_env="MINE")) == "variable"
    file.write_text("one\n")
    account = Account(api_key_file=file, api_key_env="MINE")
    assert value(settings, account) == "one"
    file.write_text("another\r\n")
    assert value(settings, account) == "another"
    own.write_text("own")
    monkeypatch.setenv("DRAFTMILL_API_KEY_FILE_MY_ROUTER_2", str(own))
    assert value(settings, account) == "own"


@pytest.mark.parametrize("content", ["", " \n", "two words", "schlüssel", "a\nb"])
def test_a_file_without_one_plain_key_is_refused_and_never_quoted(tmp_path: Path, content: str) -> None:
    file = tmp_path / "key"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(SettingsError, match="must hold one key") as refusal:
        value(load(), Account(api_key_file=file))
    assert not content.strip() or content.strip() not in str(refusal.value)


def test_an_empty_variable_for_a_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINE", raising=False)
    with pytest.raises(SettingsError, match=r"\$MINE"):
        value(load(), Account(api_key_env="MINE"))


def test_settings_do_not_show_their_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTMILL_API_KEY", "sk-or-secret")
    monkeypatch.setenv("DRAFTMILL_DATABASE_URL", "postgresql://u:pass-word@h/d")
    assert "secret" not in repr(load()).replace("SecretStr", "")
    assert "pass-word" not in repr(load())


def value(settings: Settings, account: Account) -> str | None:
    key = settings.key_of("my-router.2", account)
    return key.get_secret_value() if key else None
