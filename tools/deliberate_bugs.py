"""Put bugs into lox, one at a time, and check that the tests find each of them.

`make deliberate-bugs` runs this; `ARGS="ring.py mask.py"` takes some of the files only. The
tests are those of `make test`, or of `make test-full` with `LOX_FULL=1`. Each bug changes
one place in a copy of the project, and names the tests that should fail. It is caught if
one of them does; the others are then left out.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = ("lox", "lox_host", "logify", "tests", "benchmarks")
FILES = ("conftest.py", "pyproject.toml")


class Bug(NamedTuple):
    """A change of the code that some tests must notice.

    Attributes:
        what: What it breaks.
        file: The file to change.
        old: What stands there, at one place.
        new: What it is replaced by.
        tests: The tests that should find it, separated by blanks.
    """

    what: str
    file: str
    old: str
    new: str
    tests: str


LAWS = "tests/laws/test_laws.py"
INTERVALS = "tests/laws/test_intervals.py"
REDUCTIONS = "tests/laws/test_reductions.py"
COTANGENTS = "tests/laws/test_cotangents.py"
COST = "tests/laws/test_compiled_cost.py"
WHILES = "tests/core/test_while_loops.py"
SPOOL = "tests/core/test_spool.py"
COUNTS = "tests/core/test_exact_counts.py"
TAP = "tests/stream/test_tap.py"
LOGDICT = "tests/logdict"
STORE = "tests/host/store tests/io/test_save_and_load.py"

BUGS = [
    # The rules: how logs leave loops, branches and calls
    Bug(
        "a `scan` that runs backwards has its rows in the wrong order",
        "lox/_core/rules/loop_with_logs.py",
        "if reverse:",
        "if not reverse:",
        LAWS,
    ),
    Bug(
        "with `batch`, a reversed `scan` begins with the wrong rows",
        "lox/_core/rules/loops.py",
        'start = rest if options["reverse"] else 0',
        "start = 0",
        TAP,
    ),
    Bug(
        "what the predicate of a `while` logs first is lost",
        "lox/_core/rules/loops.py",
        "return outs[1:], Collected.joined([first, rest])",
        "return outs[1:], rest",
        WHILES,
    ),
    Bug(
        "under `vmap`, an example whose loop has ended goes on logging",
        "lox/_core/rules/exact_vmap.py",
        "kind.of(running)",
        "kind.of(jnp.ones_like(running))",
        WHILES,
    ),
    Bug(
        "under `vmap`, records get the mask of the other branch",
        "lox/_core/rules/exact_vmap.py",
        "choice.index == choice.branch.index",
        "choice.index != choice.branch.index",
        LAWS,
    ),
    Bug(
        "nested masks are joined by `or`",
        "lox/_core/mask.py",
        "record.valid & wide",
        "record.valid | wide",
        LAWS,
    ),
    Bug(
        "under `grad`, JAX moves a record out of its loop",
        "lox/_core/rules/exact_grad.py",
        "Interpreter(Anchor(counter))",
        "Interpreter(Anchor(start))",
        LAWS,
    ),
    Bug(
        "the derivative of a `custom_jvp` function is not that of its rule",
        "lox/_core/rules/custom.py",
        "next(moving) if is_differentiable(x) else _zero_tangent(x) for x in outs",
        "_zero_tangent(x) for x in outs",
        LAWS,
    ),
    Bug(
        "what a backward rule logs is lost",
        "lox/_core/rules/custom.py",
        "interpreter.handler.in_backward_rules()",
        "interpreter.handler.quiet()",
        SPOOL,
    ),
    # Collecting: which records, which keys, in which rows
    Bug(
        "an interval of k keeps rows k - 1, 2k - 1, ...",
        "lox/_core/collect.py",
        "keep = lax.rem(offset, jnp.int32(self.interval)) == 0",
        "keep = lax.rem(offset + 1, jnp.int32(self.interval)) == 0",
        INTERVALS,
    ),
    Bug(
        "an interval counts rows that an example has not logged",
        "lox/_core/collect.py",
        "valid, count = rows.valid & keep, rows.valid.astype(jnp.int32)",
        "valid, count = rows.valid & keep, 1",
        INTERVALS,
    ),
    Bug(
        "`keep_logs` passes nothing on",
        "lox/_core/collect.py",
        "if self.keep or key not in selected",
        "if key not in selected",
        LAWS,
    ),
    Bug(
        "`nolog` leaves the logs in the program",
        "lox/_core/nolog.py",
        "with silent():",
        "if silent():",
        COST,
    ),
    # Rows: joined in time, aligned, reduced, kept in rings
    Bug(
        "rows of a `cond` and rows after it are joined in the wrong order",
        "lox/_rows/merge.py",
        "[_fold(keys, group, depth) for group in groups]",
        "[_fold(keys, group, depth) for group in reversed(groups)]",
        LAWS,
    ),
    Bug(
        "branches inside the branches of a vmapped `cond` have rows of their own",
        "lox/_rows/merge.py",
        "return -conds[branch.cond]",
        "return conds[branch.cond]",
        COUNTS,
    ),
    Bug(
        "a key that not all branches log has no mask",
        "lox/_rows/merge.py",
        "(set() if is_complete else {0})",
        "set()",
        LAWS,
    ),
    Bug(
        "rows without a step look as if they had one",
        "lox/_rows/align.py",
        "else fill(mask, name in entry.steps)",
        "else fill(mask, True)",
        LAWS,
    ),
    Bug(
        "rows of two dtypes get the first one",
        "lox/_rows/align.py",
        "return jnp.result_type(*different)",
        "return different[0]",
        "tests/rows",
    ),
    Bug(
        "the tags of all but the first record of a key are lost",
        "lox/_rows/align.py",
        "tags=tuple(dict.fromkeys(tag for entry in entries for tag in entry.tags)),",
        "tags=first.tags,",
        LAWS,
    ),
    Bug(
        "a ring that has just wrapped around begins with its newest row",
        "lox/_rows/ring.py",
        "jnp.where(ring.count > capacity,",
        "jnp.where(ring.count > capacity + 1,",
        WHILES,
    ),
    Bug(
        "a ring has one row too many",
        "lox/_rows/ring.py",
        ".reshape(-1, *[1] * n) < count",
        ".reshape(-1, *[1] * n) <= count",
        WHILES,
    ),
    Bug(
        "a reduction counts rows of branches that were not taken",
        "lox/_rows/accumulator.py",
        "    if rows.valid is None:\n        return one",
        "    return one",
        REDUCTIONS,
    ),
    Bug(
        '"first" has the steps of the last row',
        "lox/_rows/accumulator.py",
        "later.valid & jnp.logical_not(earlier.valid)",
        "later.valid",
        REDUCTIONS,
    ),
    Bug(
        "a reduced key of a loop that never runs has no mask",
        "lox/_rows/loop_carry.py",
        "valid=None if length and of_one.valid is None else total.valid,",
        "valid=None if of_one.valid is None else total.valid,",
        f"{REDUCTIONS} {WHILES}",
    ),
    # Streaming
    Bug(
        "host calls do not wait for those before",
        "lox/_stream/handler.py",
        "token=self.token if state.token is None else state.token,",
        "token=self.token,",
        TAP,
    ),
    Bug(
        "rows that wait when a loop ends are not sent",
        "lox/_stream/handler.py",
        "token = self._send(self.buffer, self.token)\n        state",
        "token = self.token\n        state",
        TAP,
    ),
    Bug(
        "a delivery loses the rows that not all examples have",
        "lox/_stream/decode.py",
        "yield key, value[mask] if mask.ndim else value",
        "yield key, value[:1] if mask.ndim else value",
        TAP,
    ),
    # Logs and runs
    Bug(
        "`a + b` has the rows of `b` first",
        "lox/_logdict/logdict.py",
        "join(k, first[k], second[k])",
        "join(k, second[k], first[k])",
        LOGDICT,
    ),
    Bug(
        "`compact` keeps the first rows and not those that exist",
        "lox/_logdict/slicing.py",
        "order = np.argsort(~valid, axis=rows.leading",
        "order = np.argsort(valid, axis=rows.leading",
        LOGDICT,
    ),
    Bug(
        "rows of a `vmap` over runs go to the wrong run",
        "lox/_runs/to_blocks.py",
        "runs = runs.repeat(length)",
        "runs = np.tile(runs, length)",
        "tests/runs tests/loggers/test_loggers.py",
    ),
    # The host: loggers, writers, the store, reading
    Bug(
        "rows are written in the order of their blocks",
        "lox_host/rows.py",
        'order = np.argsort(np.concatenate(orders), kind="stable") if orders else ()',
        "order = range(len(places))",
        "tests/loggers/test_logger_contract.py tests/loggers/test_loggers.py",
    ),
    Bug(
        "a logger writes rows of runs that are over",
        "lox_host/write_buffer.py",
        "return [block.of_runs(known) for block in blocks]",
        "return list(blocks)",
        "tests/loggers",
    ),
    Bug(
        "a new column of a CSV file shifts the old rows",
        "lox_host/writers/csv.py",
        'end = encode(f"{commas}\\n")',
        'end = encode("\\n")',
        "tests/host/writers/test_csv.py",
    ),
    Bug(
        "trackers get the first step, whatever it is called",
        "lox_host/writers/_tracker_rows.py",
        'return whole.get("step", next(iter(whole.values()), None))',
        "return next(iter(whole.values()), None)",
        "tests/loggers/test_trackers.py tests/loggers/test_tracker_runs.py",
    ),
    Bug(
        "rows that a resumed session repeats are there twice",
        "lox_host/store/history.py",
        "return np.where(np.isnan(limit), steps.order < cut, is_before)",
        "return np.ones(len(steps.order), bool)",
        STORE,
    ),
    Bug(
        "rows of several layouts are loaded one layout after the other",
        "lox_host/store/key_rows.py",
        "return np.concatenate(arrays)[order]",
        "return np.concatenate(arrays)",
        STORE,
    ),
    Bug(
        "a resumed store numbers its rows from the start",
        "lox_host/store/session.py",
        "session._rows = 1 + max(reader.last_rows().values(), default=-1)",
        "session._rows = 0",
        STORE,
    ),
    Bug(
        "a damaged line of a journal counts",
        "lox_host/store/format/journal.py",
        'if checksum != b"%08x" % zlib.crc32(text):',
        "if not checksum:",
        STORE,
    ),
    Bug(
        "the oldest session of a run is loaded, not the newest",
        "lox_host/reading/select.py",
        "    for run in runs:\n        identity = run.identity",
        "    for run in reversed(runs):\n        identity = run.identity",
        "tests/host/cli tests/io",
    ),
    Bug(
        "a condition on a run is true where it is unknown",
        "lox_host/reading/where.py",
        "        if a is None or b is None:\n            return None",
        "        if a is None or b is None:\n            return True",
        "tests/host/reading",
    ),
]


def main() -> int:
    wanted = sys.argv[1:]
    bugs = [bug for bug in BUGS if not wanted or any(word in bug.file for word in wanted)]
    check_texts(bugs)
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy_project(pathlib.Path(folder))
        for bug in bugs:
            caught = is_caught(bug, pathlib.Path(folder))
            print(f"{'caught' if caught else 'MISSED'}  {bug.file}: {bug.what}", flush=True)
            missed += not caught
    print(f"{len(bugs) - missed} of {len(bugs)} bugs are caught")
    return int(missed > 0)


def check_texts(bugs: list[Bug]) -> None:
    """Exit if the code has changed so that a bug can no longer be put in."""
    for bug in bugs:
        count = (ROOT / bug.file).read_text().count(bug.old)
        if count != 1:
            sys.exit(
                f"{bug.file} has this {count} times, not once: {bug.old!r} ({bug.what})"
            )


def copy_project(folder: pathlib.Path) -> None:
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name)
    for name in FILES:
        shutil.copy(ROOT / name, folder)


def is_caught(bug: Bug, folder: pathlib.Path) -> bool:
    """Put a bug into the copy, run its tests until one fails, and take it out again."""
    file = folder / bug.file
    right = file.read_text()
    file.write_text(right.replace(bug.old, bug.new))
    command = [sys.executable, "-m", "pytest", "-n0", "-x", "-q", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, *bug.tests.split()],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
        )
    finally:
        file.write_text(right)
    # 1: a test failed. Else but 0, such as a wrong path, it is a mistake in the table.
    if done.returncode not in (0, 1):
        sys.exit(f"{bug.what}: pytest cannot run {bug.tests}\n{done.stdout}{done.stderr}")
    return done.returncode == 1


if __name__ == "__main__":
    sys.exit(main())
