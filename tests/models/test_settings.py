"""Secrets that stand in files: read as containers are given them, and never in place of what was said outright."""

from pathlib import Path

import pytest

from models.errors import SettingsError
from models.settings import load


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "REDIS_URL", "FLOWER_PASSWORD", "METRICS_TOKEN", "HOME"):
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
