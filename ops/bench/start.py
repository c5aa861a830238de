"""From a command to its first call, and what the help costs."""

import resource
import subprocess
import sys
from statistics import median

from models.settings import environment
from ops import services
from ops.bench.mill import Load, Mill, folder, running
from ops.bench.report import table

TIMES = 5


def measure() -> str:
    load = Load(2_000, 500, {"B1": 5_000}, (20.0, 60.0), "kimi-k2.5")
    with folder() as place, services.start(place / "home") as found, running(
            load, DRAFTMILL_DATABASE_URL=found.database_url, DRAFTMILL_REDIS_URL=found.redis_url) as mill:
        first = first_call(mill)
        mill.rig.kill_everything()
        mill.rig.process = None     # its end is no surprise
        mill.rig.wait(lambda: mill.simulator.summary()["in_flight"] == 0, 30, "the end of all calls")
        mill.rig.start("up", "--plan", str(mill.rig.folder / "draftmill.toml"))
        again = first_call(mill)
    with running(load) as mill:
        empty = first_call(mill)
    return table(["what", "s"], [
        ["`draftmill --help`, CPU", median(help_cpu_s() for _ in range(TIMES))],
        ["`up` to the first call of a queue that waits, services already there", again],
        ["`run` of 5,000 new prompts to its first call, services already there", first],
        ["the same in an empty folder, with the services' own start", empty]])


def first_call(mill: Mill) -> float:
    """Seconds from now, just after the command."""
    return mill.rig.wait(lambda: mill.simulator.summary()["in_flight"] > 0, 120, "a first call")


def help_cpu_s() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "ops", "--help"], env=environment(), check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
