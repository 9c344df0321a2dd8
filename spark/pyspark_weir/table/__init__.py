"""The archive: one Delta table a root, which any engine reads. Knows neither Spark nor gateways.

    root = ArchiveRoot.of("s3://bucket/archive", {"AWS_REGION": "…"})  # or a path; can be pickled
    table = ArchiveTable.create(root)  # or .open(root)
    files = write_files(root, rows)  # a pyarrow table of GIVEN: gateway, stream, generation, id, fields
    key = StreamKey("g0", "orders", generation)
    moved = BatchRanges(query_id, batch_id, (Range(key, after, upto, rows.num_rows),))  # (after, upto]
    table.commit(Batch(moved, files))  # once; a repeat returns Committed(repeated=True)
    table.positions()[("g0", "orders")]  # ArchivePosition(generation, upto): the next batch's `after`
    table.files(EntryFilter(stream="orders", since=…, after=…))  # the DataFiles whose statistics match
    gaps(table.ranges())  # joined ranges; no gaps where they are contiguous from the beginning
    table.replace(old_files, new_files)  # compaction; CommitConflictError: begin again
    with writer_lock(root): ...  # on this machine, one maintenance at a time; ArchiveLockedError

A handle stays at its version until `refresh()`; `commit` and `replace` refresh first. IDs are `ids.EntryId`s.
"""
