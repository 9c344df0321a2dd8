"""The routes: parse, one engine call, wire."""
