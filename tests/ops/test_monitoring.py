"""The shipped dashboards and alerts: Prometheus' own tool accepts them, and each reads metrics that there are."""

import json
import re
import subprocess
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import yaml

from ops.families import FAMILIES

HERE = Path(__file__).parents[2] / "ops/monitoring"
RULES = HERE / "rules/draftmill.yml"
DASHBOARDS = sorted((HERE / "grafana/dashboards").glob("*.json"))
SERIES = {f"draftmill_{name}" + ("_total" if one.counter else "") for name, one in FAMILIES.items()}


def promtool(*arguments: str | Path) -> str:
    if which("promtool") is None:
        pytest.skip("promtool is missing: apt-get install prometheus")
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels(dashboard: Path) -> list[dict[str, Any]]:
    return list(json.loads(dashboard.read_text())["panels"])


def expressions(dashboard: Path) -> list[str]:
    return [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]


def labels_of(expression: str) -> dict[str, set[str]]:
    """series -> the labels that its selectors name."""
    found: dict[str, set[str]] = {}
    for name, matchers in re.findall(r"(draftmill_\w+)(?:\{([^}]*)\})?", expression):
        found.setdefault(name, set()).update(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
    return found


def test_promtool_accepts_the_rules_and_their_tests_pass() -> None:
    assert f"SUCCESS: {len(rules())} rules found" in promtool("check", "rules", RULES)
    assert "SUCCESS" in promtool("test", "rules", RULES.with_name("draftmill_test.yml"))


def test_promtool_accepts_the_scrape_configuration(tmp_path: Path) -> None:
    document = yaml.safe_load((HERE / "prometheus.yml").read_text())
    token = tmp_path / "token"
    token.write_text("t")
    document["scrape_configs"][0]["authorization"]["credentials_file"] = str(token)
    document["rule_files"] = [str(RULES)]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(document))
    promtool("check", "config", tmp_path / "prometheus.yml")


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda file: file.stem)
def test_promtool_accepts_every_panels_expression(dashboard: Path, tmp_path: Path) -> None:
    found = [re.sub(r"\$\w+", ".*", e) for e in expressions(dashboard)]
    document = {"groups": [{"name": "g", "rules": [{"record": f"panel:{i}", "expr": e} for i, e in enumerate(found)]}]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(document))
    assert f"SUCCESS: {len(found)} rules found" in promtool("check", "rules", tmp_path / "rules.yml")


@pytest.mark.parametrize("source", ["alerts", *[d.stem for d in DASHBOARDS]])
def test_each_expression_reads_metrics_and_labels_that_there_are(source: str) -> None:
    found = [r["expr"] for r in rules()] if source == "alerts" else expressions(HERE / f"grafana/dashboards/{source}.json")
    assert found
    for expression in found:
        for series, labels in labels_of(expression).items():
            assert series in SERIES, expression
            known = FAMILIES[series.removeprefix("draftmill_").removesuffix("_total")].labels
            assert labels <= set(known), expression


def test_every_alert_has_a_severity_a_summary_a_remedy_and_a_test() -> None:
    tests = yaml.safe_load(RULES.with_name("draftmill_test.yml").read_text())["tests"]
    tested = {a["alertname"] for t in tests for a in t.get("alert_rule_test", [])}
    tested |= {name for t in tests for e in t.get("promql_expr_test", []) for name in re.findall(r'alertname="(\w+)"', e["expr"])}
    for rule in rules():
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert set(rule["annotations"]) == {"summary", "remedy"}
        assert rule["alert"] in tested


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda file: file.stem)
def test_panels_have_ids_of_their_own_and_do_not_overlap(dashboard: Path) -> None:
    taken: set[tuple[int, int]] = set()
    found = panels(dashboard)
    assert len({p["id"] for p in found}) == len(found)
    for panel in found:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not taken & cells, panel["title"]
        taken |= cells
        assert panel["datasource"]["uid"] == "${source}"
