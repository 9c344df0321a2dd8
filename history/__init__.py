"""`weir history serve`: reads an archive's Delta table, and answers pages of it as the gateway does.

Knows: the table through `pyspark_weir.table`, which needs no Spark; how a page is found and encoded.
Must never know: the engine's state, who may read what: it trusts the gateway that asks.

    request ─► service ─► reader: which files, which row groups, in which order
                 │           ├─► archive: the table at one version, its ranges, its deletions
                 │           └─► groups: a row group, encoded once and cached
                 └─ metrics, limits, the token
"""
