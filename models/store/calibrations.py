"""Calibrations: the newest convention of each model x provider x finish reason."""

import json
from collections.abc import Mapping

from sqlalchemy import Connection, text

from models.tokens.calibrate import Convention

Key = tuple[str, str, str, str]     # profile, model, provider, finish reason

_NEWEST = text("""
select distinct on (profile, model, provider, finish_reason) profile, model, provider, finish_reason, convention
from calibration order by profile, model, provider, finish_reason, id desc""")
_PUT = text("""
insert into calibration (profile, model, provider, finish_reason, rows, convention)
values (:p_profile, :p_model, :p_provider, :p_finish, :p_rows, cast(:p_convention as jsonb))""")


def newest(connection: Connection) -> Mapping[Key, Convention]:
    return {(r.profile, r.model, r.provider, r.finish_reason): Convention.from_json(r.convention)
            for r in connection.execute(_NEWEST)}


def put(connection: Connection, key: Key, convention: Convention, rows: int) -> None:
    profile, model, provider, finish = key
    connection.execute(_PUT, {"p_profile": profile, "p_model": model, "p_provider": provider, "p_finish": finish,
                              "p_rows": rows, "p_convention": json.dumps(convention.to_json())})
