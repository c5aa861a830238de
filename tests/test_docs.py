"""What the pages show is true: each command exists with its options, links lead somewhere, plans and profiles are read."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from models.plan import Plan
from models.tokens.profile import Profile
from ops.cli import app
from ops.families import FAMILIES

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w*) ?(\w*)\n(.*?)^```$", re.M | re.S)
PLACEHOLDERS = {"MODEL", "N", "FILE", "NAME"}


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, _, body in FENCE.findall(page.read_text()) if kind == language]


def commands() -> list[tuple[str, str]]:
    """(page, command line) of every `draftmill ...` in a block or between backticks."""
    found = []
    for page in PAGES:
        text = page.read_text()
        lines = "\n".join([*blocks(page, "bash"), *blocks(page, "")]).replace("\\\n", " ").splitlines()
        lines += re.findall(r"`(draftmill [^`\n]+)`", FENCE.sub("", text))
        for line in lines:
            if (match := re.match(r"\s*draftmill( .*)", line)) and "..." not in line and "[" not in line:
                found.append((str(page.relative_to(ROOT)), match[1].split(" #")[0].strip()))
    return found


def parsed(words: list[str]) -> None:
    """As the command line does, without running anything."""
    group: Any = typer.main.get_command(app)
    if words[0].startswith("-"):
        assert words[0] in ("--install-completion", "--show-completion", "--help")
        return
    assert words[0] in group.commands, f"there is no command {words[0]}"
    command = group.commands[words[0]]
    known = {option for p in command.params for option in [*p.opts, *p.secondary_opts]}
    for word in words[1:]:
        if word.startswith("-") and not command.ignore_unknown_options:
            assert word.partition("=")[0] in known, f"{words[0]} has no option {word}"
    complete = len(words) > 1 or not any(p.required for p in command.params)
    if complete:
        with command.make_context(words[0], list(words[1:])):
            pass


def test_there_are_commands_to_check() -> None:
    assert len({page for page, _ in commands()}) >= 8
    assert len(commands()) >= 50


@pytest.mark.parametrize(("page", "line"), sorted(set(commands())), ids=lambda value: value)
def test_each_command_shown_is_one_that_there_is(page: str, line: str) -> None:
    words = shlex.split(line)
    stop = next((i for i, w in enumerate(words) if w in ("&&", "||", "|", ">", "&", ";")), len(words))
    parsed([re.sub(r"^(N|SEED)$", "1", w) for w in words[:stop]])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_leads_to_a_file(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", FENCE.sub("", page.read_text())):
        assert target.startswith(("http://", "https://")) or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_file_named_by_its_path_exists(page: Path) -> None:
    for name in re.findall(r"`((?:ops|models|workers|producer|tests|docs|examples)/[\w./-]+)`", page.read_text()):
        assert (ROOT / name).exists() or (ROOT / f"{name}.py").exists(), name


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "toml")], ids=lambda page: page.stem)
def test_each_plan_and_profile_shown_is_read(page: Path) -> None:
    for body in blocks(page, "toml"):
        document = tomllib.loads(body)
        if "vocab_size" in document:
            Profile.model_validate(document)
            assert len(body.splitlines()) < 50
        elif "datasets" in document:
            assert Plan.model_validate(document).datasets


def test_the_python_shown_is_the_code() -> None:
    [shown] = blocks(ROOT / "docs/extending.md", "python")
    assert len(shown.splitlines()) < 50
    code = (ROOT / "workers/providers/engines.py").read_text()
    for line in shown.splitlines():
        assert line.split("  #")[0].rstrip() in code, line


def test_every_metric_is_listed() -> None:
    page = (ROOT / "docs/monitoring.md").read_text()
    rows = "".join(f"| `draftmill_{name}{'_total' if f.counter else ''}` | {', '.join(f.labels)} | {f.says} |\n"
                   for name, f in FAMILIES.items())
    assert rows in page
