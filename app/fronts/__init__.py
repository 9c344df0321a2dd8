"""Several processes behind one port: an engine process, and fronts that speak HTTP.

Knows: the codec of what they exchange (`codec`, `messages`), the frames between them (`link`), the engine as
a front has it (`remote_engine`), and what serves a front in the engine's process (`engine_port`).
Must never know: routes.
"""
