"""Writing to streams from Spark: rows become entries, entries chunks; a repeated task stores none twice."""
