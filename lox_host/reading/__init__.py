"""Find stores, select runs in them, and read these. No JAX.

`lox.runs`, `lox.load` and the command line share this package, so that all of them take the
same words. `find` resolves paths and globs to stores, `select` resolves words to runs, and
`where` evaluates conditions. `run_fields` has what you can sort and group by, `overview`
prints the table of runs, and `runs` puts it all together.
"""

from lox_host.reading.find import find_stores as find_stores
from lox_host.reading.load import (
    load_key_rows as load_key_rows,
    load_stacked as load_stacked,
    padded as padded,
    run_labels as run_labels,
)
from lox_host.reading.runs import (
    Runs as Runs,
    describe_runs as describe_runs,
    list_runs as list_runs,
)
from lox_host.reading.select import (
    SelectedRun as SelectedRun,
    all_runs as all_runs,
    newest as newest,
    no_runs as no_runs,
    older_sessions as older_sessions,
    pick as pick,
)
from lox_host.reading.where import Where as Where, select_where as select_where
