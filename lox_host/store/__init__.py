"""The store on disk. NumPy and the standard library, nanoarrow to write; no JAX.

    store/
        lox.json            marks the folder as a store, and says in which version
        <session>/          of one process, which alone ever writes there
            journal         what counts: runs, layouts, frames, each line with a checksum
            0000.arrows     rows of keys with one layout: an Arrow IPC stream

A frame is a record batch. It counts once its line is in the journal, which has the place
and the checksum of each column: one column is read and checked without the others.
"""
