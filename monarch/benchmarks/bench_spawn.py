"""Eight processes with torch, from the request to the first answer from all; a first process was started before."""

from report import Row, bench

if __name__ == "__main__":
    bench("spawn", [Row("spawn", "spawn 8 torch processes", "ms", 1e3, "≤ 100")])
