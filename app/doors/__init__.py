"""Protocols: one folder each, with a codec and its words. What stands between a socket and the engine is
beside the folders, once for all of them.
"""
