"""bespokelabs-curator on the same prompts. Arguments: base URL, prompts, out (its cache), in flight."""

import importlib.util
import json
import os
import sys

base_url, prompts, out, in_flight = sys.argv[1:]
os.environ |= {"CURATOR_CACHE_DIR": out, "TELEMETRY_ENABLED": "0", "CURATOR_VIEWER": "0", "OPENAI_API_KEY": "none",
               "HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
# It counts tokens with a vocabulary that it would download; litellm, which comes with it, has a copy.
litellm = importlib.util.find_spec("litellm")
if litellm and litellm.submodule_search_locations:
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", f"{litellm.submodule_search_locations[0]}/litellm_core_utils/tokenizers")

from bespokelabs import curator  # type: ignore[import-not-found]  # noqa: E402


class Ask(curator.LLM):  # type: ignore[misc]
    def prompt(self, row: dict[str, str]) -> str:
        return row["prompt"]

    def parse(self, row: dict[str, str], reply: str) -> dict[str, str]:
        return {"id": row["id"], "text": reply}


if __name__ == "__main__":
    with open(prompts, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    llm = Ask(model_name="moonshotai/kimi-k2.5", backend="openai", generation_params={"max_tokens": 10_240}, backend_params={
        "base_url": base_url, "max_concurrent_requests": int(in_flight), "max_requests_per_minute": 1_000_000,
        "max_tokens_per_minute": 10**10, "request_timeout": 600, "max_retries": 1, "require_all_responses": False})
    print(len(llm(rows).dataset))
