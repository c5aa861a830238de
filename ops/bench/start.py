"""From a command to its first call, and what the help costs."""

from statistics import median

from ops import services
from ops.bench.mill import Load, folder, running
from ops.bench.report import table
from ops.bench.usage import spent

TIMES = 5


def measure() -> str:
    load = Load(2_000, 500, {"B1": 5_000}, (20.0, 60.0), "kimi-k2.5")
    with folder() as place, services.start(place / "home") as found, running(
            load, DRAFTMILL_DATABASE_URL=found.database_url, DRAFTMILL_REDIS_URL=found.redis_url) as mill:
        first = mill.first_call()
        mill.rig.kill_everything()
        mill.rig.wait(lambda: mill.simulator.summary()["in_flight"] == 0, 30, "the end of all calls")
        mill.rig.start("up", "--plan", str(mill.rig.folder / "draftmill.toml"))
        again = mill.first_call()
    with running(load) as mill:
        empty = mill.first_call()
    return table(["what", "s"], [
        ["`draftmill --help`, CPU", median(spent("--help")[1] for _ in range(TIMES))],
        ["`up` to the first call of a queue that waits, services already there", again],
        ["`run` of 5,000 new prompts to its first call, services already there", first],
        ["the same in an empty folder, with the services' own start", empty]])
