"""What Python imports first in a process under libfaketime.

Its clock_nanosleep refuses the absolute times of a clock that it was told to leave alone: sleep in another way.
"""

import select
import time

time.sleep = lambda seconds: select.select([], [], [], seconds) and None
