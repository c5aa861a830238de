"""Runs a command that must not outlive its parent: `python leash.py SIGNAL PARENT UID GID COMMAND...` (UID -1: stay who we are).

A script of its own, and not a `preexec_fn`, because that one may deadlock in a parent that has threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    number, parent, uid, gid = (int(a) for a in argv[:4])
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    # After setuid, which would clear it. Only Linux has it; elsewhere the pid files must do.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            sys.exit("the parent is gone")
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    os.execv(argv[4], argv[4:])


if __name__ == "__main__":
    main(sys.argv[1:])
