"""The store on disk. NumPy and the standard library, nanoarrow to write; no JAX.

    store/
        lox.json               marks the folder as a store, and says in which format
        sessions               the sessions that it has had, and which of them were removed
        20260131-235959-.../   a session: one process, which alone ever writes there
            journal            what counts: runs, layouts, frames, in numbered lines with
                               checksums; the writer holds a lock on it
            0000.arrows        a segment: frames of one layout, an Arrow IPC stream
            0001.arrows        another layout, or more of the same
        20260201-080000-.../   the next session, of the same runs or of others

To write: `begin_session` makes the folder of a session, and `Session` writes to it. Keys
that were logged together are a *group*, with one *layout* of columns. A *frame* is what a
group had to write at one flush. It counts once the line of the flush is in the journal,
which has the place and the checksum of each column; all frames of a flush are in one line.
Files only grow, so readers need no lock. At its end a session is rewritten once, with large
frames in place of small ones.

A store may be damaged, or come from anybody. Whatever a reader finds, it opens regular
files of the store alone, allocates no more than they hold, and says what is missing, there
twice, or not what was written. It ignores what it does not know in the lines of a journal,
so that later versions can say more of a session, a run or a flush.

To read: `open_store` has a `Reader` for each session, and `Reader.blocks` its rows.
`read_key_rows` puts them together by key, a `Follower` reads what comes, `runs` lists all.
Other folders import nothing but the names below.
"""

from lox_host.store.doctor import (
    SessionReport as SessionReport,
    examine as examine,
    repair as repair,
)
from lox_host.store.folder import (
    Path as Path,
    begin_session as begin_session,
    check_mode as check_mode,
    find_stores as find_stores,
    is_store as is_store,
)
from lox_host.store.follow import Follower as Follower
from lox_host.store.key_rows import (
    KeyRows as KeyRows,
    align as align,
    read_key_rows as read_key_rows,
)
from lox_host.store.reader import (
    NonFinite as NonFinite,
    Reader as Reader,
    open_session as open_session,
    open_store as open_store,
    retry_if_stale as retry_if_stale,
)
from lox_host.store.saving import save_runs as save_runs
from lox_host.store.session import Session as Session
from lox_host.store.stored_run import (
    StoredRun as StoredRun,
    runs as runs,
    stored_runs as stored_runs,
)
