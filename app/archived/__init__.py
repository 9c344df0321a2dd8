"""What a gateway has no more and its archive holds: reads that begin there go on where the stream begins.

Knows: the service of history over HTTP, where the archive ends and the stream begins.
Must never know: archives, who may read what.
"""
