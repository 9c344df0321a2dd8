"""`python -m bench [name …]`: the benchmarks by name, all of them without one."""

import runpy
import sys

BENCHES = ("trace", "versus", "single", "decoding", "growth", "threads", "rewrite", "speed", "spark")


def main() -> None:
    """Run them one after the other."""
    wanted = sys.argv[1:] or list(BENCHES)
    for name in wanted:
        assert name in BENCHES, f"there is no bench {name}: choose from {', '.join(BENCHES)}"
        print(f"\n{name}")
        sys.argv = [name]
        runpy.run_module(f"bench.{name}", run_name="__main__")


if __name__ == "__main__":
    main()
