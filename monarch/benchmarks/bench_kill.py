"""SIGKILL of an actor to the error of the call that was under way: first, second and third death of one mesh."""

from report import Row, bench

if __name__ == "__main__":
    bench("kill", [Row("kill", "death to error", "ms", 1e3, "≤ 20")])
