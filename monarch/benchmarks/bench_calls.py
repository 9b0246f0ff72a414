"""Empty calls to eight actors: one by one, awaited, pipelined, and to all."""

from report import Row, bench

if __name__ == "__main__":
    bench(
        "calls",
        [
            Row("call", "empty call", "µs", 1e6, "≤ 60"),
            Row("awaited", "empty call, awaited", "µs", 1e6, "≤ 100"),
            Row("pipelined", "pipelined calls to one actor", "1/s", 1, "≥ 80,000"),
            Row("gather", "call on 8 ranks and gather", "µs", 1e6, "≤ 700"),
        ],
    )
