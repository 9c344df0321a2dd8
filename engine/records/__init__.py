"""The log's vocabulary: what can change, what a snapshot is made of, and how both are written down.

Knows: records (`changes`, `restored`), frames' payloads (`payload`), snapshots (`snapshot`).
Must never know: files, frames, clients.
"""
