"""What flows share: a job's plan and prompts, and what two ledgers say of it."""

import json
from collections.abc import Mapping
from typing import Any

from ops.bench.rig import Rig

KEY = "sk-or-test-0123456789abcdef"


def write_key(rig: Rig, key: str = KEY) -> None:
    """As a person replaces a key: another file moved over the old one."""
    new = rig.folder / "key.new"
    new.write_text(key + "\n")
    new.chmod(0o600)
    new.replace(rig.folder / "key.txt")


def account(base_url: str, **more: Any) -> dict[str, Any]:
    return {"kind": "openrouter", "base_url": base_url, "api_key_file": "key.txt", "slow_start": False, **more}


def job(rig: Rig, accounts: Mapping[str, Mapping[str, Any]], rows: Mapping[str, int], *, in_flight: int = 100, long: int = 20,
        max_tokens: int = 500, lanes: Mapping[str, Any] | None = None, **more: Any) -> str:
    """The path of a plan with `rows` prompts per dataset, all of them in the short lane."""
    write_key(rig)
    datasets = {}
    for name, n in rows.items():
        rig.prompts(name, [{"id": f"{name}-{i}", "prompt": f"Question {i} of {name}: what is {i} times {i + 1}?"}
                           for i in range(n)])
        datasets[name] = {
            "prompts": f"prompts/{name}.jsonl", "profile": "smollm2", "model": "moonshotai/kimi-k2.5",
            "account": next(iter(accounts)), "promote": False,
            "short": {"max_tokens": max_tokens, "concurrency": in_flight, **(lanes or {})},
            "long": {"max_tokens": 2 * max_tokens, "concurrency": long, **(lanes or {})}, **more}
    return str(rig.plan({"output_dir": "out", "accounts": accounts, "datasets": datasets}))


def totals(rig: Rig) -> dict[str, dict[str, Any]]:
    code, out = rig.command("status", "--json")
    assert code == 0, out
    return {d["name"]: d for d in json.loads(out.strip().splitlines()[-1])["datasets"]}


def check_counters(rig: Rig) -> None:
    """Counters are sums over rows, nothing is reserved, and each sample has one end."""
    assert rig.query("select count(*) from dataset where reserved_tokens <> 0 or reserved_nusd <> 0 or running <> 0") == [(0,)]
    assert rig.query("""
        select d.name from dataset d
        left join (select dataset_id, count(*) n, sum(n_tokens) t from completion group by 1) c on c.dataset_id = d.id
        left join (select dataset_id, sum(prompt_tokens + completion_tokens) t, sum(cost_nusd) usd from attempt group by 1) a
          on a.dataset_id = d.id
        where d.done <> coalesce(c.n, 0) or d.stored_tokens <> coalesce(c.t, 0) or d.billed_tokens <> coalesce(a.t, 0)
          or d.spent_nusd <> coalesce(a.usd, 0)""") == []
    assert rig.query("""
        select s.id from sample s full join completion c on c.sample_id = s.id
        where coalesce(s.state = 2, false) <> (c.sample_id is not null)""") == []
