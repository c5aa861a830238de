"""From a command to its first call, and what the help costs."""

import resource
import subprocess
import sys
from statistics import median

from models.settings import environment
from ops import services
from ops.bench.mill import Load, folder, running
from ops.bench.report import table

TIMES = 5


def measure() -> str:
    load = Load(2_000, 500, {"B1": 5_000}, (20.0, 60.0), "kimi-k2.5")
    with folder() as place, services.start(place / "home") as found:
        up = first_call(load, DRAFTMILL_DATABASE_URL=found.database_url, DRAFTMILL_REDIS_URL=found.redis_url)
    return table(["what", "s"], [
        ["`draftmill --help`, CPU", median(help_cpu_s() for _ in range(TIMES))],
        ["`run` of 5,000 prompts to its first call, services already there", up],
        ["`run` of 5,000 prompts to its first call, in an empty folder", first_call(load)]])


def first_call(load: Load, **env: str) -> float:
    """Seconds; Alembic's migrations, reading and enqueueing are in it."""
    with running(load, **env) as mill:
        return mill.rig.wait(lambda: mill.simulator.summary()["in_flight"] > 0, 120, "a first call")


def help_cpu_s() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "ops", "--help"], env=environment(), check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
