"""From words to requests: the table of commands and a parser for each."""
