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
Files only grow, so readers need no lock. At its end a session with more than a few small
frames is rewritten once, with large ones in their place.

A store may be damaged, or come from anybody. Whatever a reader finds, it opens regular
files of the store alone, allocates no more than they hold, and says what is missing, there
twice, or not what was written. It ignores what it does not know in the lines of a journal,
so that later versions can say more of a session, a run or a flush.

To read: `open_store` has a `Reader` for each session, and `Reader.blocks` its rows. If runs
were resumed, the newest session has the rows of the earlier ones in front of its own, and
the earlier ones say which runs are `continued`.
`read_key_rows` puts them together by key, a `Follower` reads what comes, `stored_runs` says
what is in each run.
Other folders import nothing but the names below.
"""

from lox_host.store.address import (
    URL_FILE as URL_FILE,
    Path as Path,
    absolute as absolute,
    folder_for as folder_for,
    is_url as is_url,
    url_of as url_of,
)
from lox_host.store.doctor import (
    SessionReport as SessionReport,
    examine as examine,
    repair as repair,
)
from lox_host.store.earlier_runs import EarlierRuns as EarlierRuns
from lox_host.store.folder import (
    OBJECTS_FORMAT as OBJECTS_FORMAT,
    begin_session as begin_session,
    check_mode as check_mode,
    find_stores as find_stores,
    is_session_name as is_session_name,
    is_store as is_store,
    remove_session as remove_session,
    session_folders as session_folders,
)
from lox_host.store.follow import Follower as Follower, JournalTail as JournalTail
from lox_host.store.format.dtypes import dtype_named as dtype_named, to_stored as to_stored
from lox_host.store.format.frame_reader import (
    FrameReader as FrameReader,
    StaleSession as StaleSession,
)
from lox_host.store.format.frames import Frame as Frame
from lox_host.store.format.journal import (
    NAME as NAME,
    decode_line as decode_line,
    encode as encode,
)
from lox_host.store.format.layout import ROW as ROW, RUN as RUN, Layout as Layout
from lox_host.store.format.lock import (
    has_writer as has_writer,
    is_locked as is_locked,
    lock as lock,
    lock_folder as lock_folder,
    lock_soon as lock_soon,
)
from lox_host.store.format.parquet import (
    Part as Part,
    encode_segment as encode_segment,
    families as families,
    parquet_names as parquet_names,
    pyarrow as pyarrow,
    read_lines as read_lines,
)
from lox_host.store.key_rows import (
    KeyRows as KeyRows,
    pad as pad,
    read_key_rows as read_key_rows,
)
from lox_host.store.read_grid import (
    StackedRows as StackedRows,
    read_stacked as read_stacked,
)
from lox_host.store.reader import (
    Reader as Reader,
    open_session as open_session,
    open_store as open_store,
    reopen as reopen,
    retry_if_stale as retry_if_stale,
)
from lox_host.store.run_statistics import NonFinite as NonFinite
from lox_host.store.saving import (
    after as after,
    newest_sessions as newest_sessions,
    save_runs as save_runs,
    save_session as save_session,
)
from lox_host.store.sealed_segments import (
    Sealer as Sealer,
    Segment as Segment,
    segment_name as segment_name,
)
from lox_host.store.session import Session as Session
from lox_host.store.stored_run import (
    StoredRun as StoredRun,
    stored_runs as stored_runs,
)
