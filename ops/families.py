"""Every metric: what it is called (after `draftmill_`), what it says, its labels. Dashboards and alerts are held against it."""

from dataclasses import dataclass

DATASET, LANE = ("dataset",), ("dataset", "lane")
WORKER = ("id", "worker", "host", "lane")
PROVIDER = ("dataset", "provider", "quantization")


@dataclass(frozen=True, slots=True)
class Family:
    """counter: its samples end in `_total`."""

    says: str
    labels: tuple[str, ...] = ()
    counter: bool = False


FAMILIES = {
    "source_up": Family("1 when database, ledger or redis answered this scrape in time", ("source",)),
    "source_read_seconds": Family("how long the last reading of a source took", ("source",)),
    "samples": Family("samples by state: queued, running, done, failed", ("dataset", "state")),
    "dataset_open": Family("1 while a dataset takes claims", DATASET),
    "dataset_closed": Family("1 with the reason for which a dataset is closed", ("dataset", "reason")),
    "open_samples": Family("queued samples of open datasets; scale workers on these", LANE),
    "snoozed_samples": Family("those of the open samples that are not due yet", LANE),
    "in_flight": Family("calls under way, as the ledger has them", LANE),
    "queue_length": Family("hints that wait in Redis (a window, not the work left)", LANE),
    "billed_tokens": Family("prompt and completion tokens of all calls", DATASET, counter=True),
    "stored_tokens": Family("completion tokens of stored answers", DATASET),
    "useful_tokens": Family("completion tokens of trainable answers", DATASET),
    "reserved_tokens": Family("tokens that open calls may still bring", DATASET),
    "token_budget": Family("the token budget, where there is one", DATASET),
    "spent_dollars": Family("what all calls have cost", DATASET, counter=True),
    "reserved_dollars": Family("what open calls may still cost", DATASET),
    "money_budget_dollars": Family("the money budget, where there is one", DATASET),
    "waste_tokens": Family("billed tokens that are no useful row, by kind", ("dataset", "kind")),
    "waste_dollars": Family("dollars for what is no useful row, by kind", ("dataset", "kind")),
    "rows": Family("stored answers by grade of their ids", ("dataset", "grade")),
    "failed_samples": Family("failed samples by reason", ("dataset", "reason")),
    "attempts": Family("ended calls by what was done and why; action rescue and release are the reaper's and a stop's",
                       ("dataset", "lane", "action", "code"), counter=True),
    "provider_calls": Family("how the newest 5,000 calls of a dataset went", (*PROVIDER, "outcome")),
    "provider_latency_seconds": Family("latency of those calls", (*PROVIDER, "quantile")),
    "provider_tokens_per_second": Family("completion tokens per second of one call", PROVIDER),
    "provider_excluded": Family("1 for a provider that is left out because it drifted", ("dataset", "provider")),
    "account_in_flight": Family("calls that an account has under way, as the fleet's limit counts them", ("account",)),
    "account_limit": Family("calls that an account takes at once, as learnt or as fixed", ("account",)),
    "account_waiting": Family("calls that wait for a slot of an account", ("account",)),
    "account_paused": Family("1 with the reason for which an account is paused", ("account", "reason")),
    "worker_heartbeat_age_seconds": Family("since a worker beat last, on the database's clock", WORKER),
    "worker_in_flight": Family("calls of a worker in flight", WORKER),
    "worker_concurrency": Family("samples that a worker may have in hand", WORKER),
    "worker_spool": Family("settlements that wait on a worker's disk for the database", WORKER),
    "worker_loop_lag_seconds": Family("how late a worker's loop was at its last beat", WORKER),
    "worker_token_wait_seconds": Family("how long answers wait for a token thread", WORKER),
    "workers_died": Family("workers declared dead in the last days"),
    "reaper_leading": Family("1 while some reaper leads"),
}
