import subprocess
import sys
from urllib.parse import quote

import pytest

from ops.logs import redacted

KEY = "sk-or-v1-0123456789abcdefCANARY"


@pytest.mark.parametrize("text", [
    f"Authorization: Bearer {KEY}", f"key={KEY}", f"postgresql+psycopg://draftmill:{KEY}@127.0.0.1:5432/x", f"redis://:{KEY}@h/0",
    f"bearer%20{quote(KEY)}", f"Bearer {KEY}\n"])
def test_nothing_that_looks_like_a_key_or_password_is_kept(text: str) -> None:
    assert "CANARY" not in redacted(text)


def test_text_without_secrets_is_left_as_it_is() -> None:
    assert redacted("sample 12 of B1: http_500 from https://openrouter.ai/api/v1") == "sample 12 of B1: http_500 from https://openrouter.ai/api/v1"


def test_keys_are_redacted_in_events_exceptions_and_foreign_loggers() -> None:
    script = f"""
import io, logging, structlog
from ops.logs import configure
configure("DEBUG")
structlog.get_logger("a").info("x", url="redis://:{KEY}@h/0")
logging.getLogger("foreign").error("Bearer %s", "{KEY}")
try:
    raise ValueError("Bearer {KEY}")
except ValueError:
    structlog.get_logger("a").exception("failed")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert "CANARY" not in done.stderr + done.stdout
    assert done.stderr.count("***") >= 3
