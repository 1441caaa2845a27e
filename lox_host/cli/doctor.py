"""`lox doctor`: find what is damaged in a store, and save the rest."""

import shlex

from lox_host.cli.errors import CLIError
from lox_host.display.text import clean, count
from lox_host.store import SessionReport, examine, repair


def doctor(where: str, *, to: str | None) -> None:
    """Read all of a store and print what is wrong. Write the rest to another store."""
    problems, sessions = examine(where)
    runs = sum(len(session.reader.runs) for session in sessions if session.reader)
    rows = sum(session.rows for session in sessions)
    for problem in problems:
        print(f"{clean(where)}: {clean(problem)}")
    for session in sessions:
        _print(session)
    what = f"{count(runs, 'run')} with {count(rows, 'row')}"
    if to is not None:
        repair(sessions, to)
        print(f"Saved {what} to {clean(to)}; {clean(where)} is unchanged.")
        return
    if not problems and not any(session.problems for session in sessions):
        print(f"{clean(where)} is intact: {count(len(sessions), 'session')}, {what}.")
        return
    raise CLIError(
        f"{where} is damaged. To save {what} to a new store, run `lox doctor "
        f"{shlex.quote(where)} --repair DIR`. This does not change {where}."
    )


def _print(session: SessionReport) -> None:
    if not session.problems:
        return
    saved = "nothing in it can be read"
    if session.reader is not None:
        runs = count(len(session.reader.runs), "run")
        saved = f"{runs} with {count(session.rows, 'row')} can be read"
    print(f"{session.name}: {saved}")
    for problem in session.problems:
        print(f"  {clean(problem)}")
