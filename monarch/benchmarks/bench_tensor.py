"""A tensor of 64 MiB one way, with an empty answer."""

from report import Row, bench

if __name__ == "__main__":
    bench("tensor", [Row("tensor", "64 MiB tensor one way", "GB/s", 1e-9, "≥ 3")])
