"""The doors: HTTP on one side, `engine` on the other, nothing kept in between."""
