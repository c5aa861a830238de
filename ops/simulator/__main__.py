"""`python -m ops.simulator`: every field of Behaviour is an option."""

import argparse
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from models.errors import SettingsError
from ops.simulator.app import main
from ops.simulator.behaviour import Behaviour, Lengths
from ops.simulator.faults import KINDS, mix

_OWN = ("faults", "hosts", "api_keys_file", "ledger", "lengths", "tokenizers")


def parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser("ops.simulator", description="A provider to test against.")
    parse.add_argument("--host", default="127.0.0.1")
    parse.add_argument("--port", type=int, default=0, help="0: any free port (default)")
    parse.add_argument("--ready-file", type=Path, help="written with the URLs once connections are accepted")
    parse.add_argument("--lengths", type=Lengths, choices=list(Lengths), default=Lengths.LOGNORMAL)
    parse.add_argument("--fault-share", type=float, default=0.0,
                       help="this share of calls fails, in all ways that asking again may mend")
    parse.add_argument("--fault", action="append", default=[], metavar="KIND=SHARE", help=f"one of {', '.join(KINDS)}")
    parse.add_argument("--api-keys-file", type=Path, help="keys that are good, one a line")
    parse.add_argument("--tokenizers", type=Path, help="folder with the profile's vocabulary")
    parse.add_argument("--ledger", type=Path, help="append every call to this file, JSON lines")
    for field in fields(Behaviour):
        if field.name in _OWN or field.default is MISSING:
            continue
        flag, default = f"--{field.name.replace('_', '-')}", field.default
        if isinstance(default, bool):
            parse.add_argument(flag, action="store_true")
        else:
            parse.add_argument(flag, type=type(default), default=default, help=f"default {default}")
    return parse


def behaviour(arguments: argparse.Namespace) -> Behaviour:
    """SettingsError names what cannot be used."""
    shares = mix(arguments.fault_share) if arguments.fault_share else {}
    for item in arguments.fault:
        kind, _, share = item.partition("=")
        try:
            shares[kind] = float(share)
        except ValueError:
            raise SettingsError(cause=f"--fault wants KIND=SHARE, not {item!r}") from None
    values: dict[str, Any] = {f.name: getattr(arguments, f.name) for f in fields(Behaviour) if f.name not in ("faults", "hosts")}
    return Behaviour(**values, faults=shares)


if __name__ == "__main__":
    given = parser().parse_args()
    try:
        main(behaviour(given), given.host, given.port, given.ready_file)
    except SettingsError as error:
        sys.exit(str(error))
