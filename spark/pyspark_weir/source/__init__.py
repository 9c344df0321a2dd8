"""Reading streams as data frames, in batches and as streams."""
