"""Benchmarks: run by hand, beside real peers; no part of the tests."""
