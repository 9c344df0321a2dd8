"""Documents as tests: the commands they show are run, and what they print is what the document says."""
