"""Builds an sdist, from it a wheel for each Python, and uses each wheel in an empty environment.

    python packages.py [PYTHON...] [--torch REQUIREMENT | --torch-in FOLDER | --link-torch] [--out FOLDER]

PYTHON: interpreters to build for, by default every python3.10 to python3.13 that runs here. Each wheel is used
without torch first (smoke.py), then with it: `--torch torch==2.13.0` installs it, `--torch-in FOLDER` uses the
torch in FOLDER/3.x for Python 3.x, and `--link-torch` uses the torch of the Python that runs this script, if the
versions are equal. `--out` keeps the files.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from time import monotonic

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # opreplay requires it there

HERE = Path(__file__).parent
ROOT = HERE.parent
MINORS = range(10, 14)
PIP_FLAGS = os.environ.get("PIP_FLAGS", "").split()
SOURCES = ("traces", "initializers", "replay", "cli", "pyproject.toml", "README.md", "LICENSE")


def run(*command: object, cwd: Path | None = None) -> str:
    """Return the standard output of a command; exit with all that it wrote if it fails."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def pip(python: str | Path, *arguments: object) -> None:
    """Run this interpreter's pip for `python`, which need not have one."""
    flags = ["--quiet", "--disable-pip-version-check", "--python", python]
    run(sys.executable, "-m", "pip", *flags, *arguments, *PIP_FLAGS)


def pythons_here() -> list[str]:
    """Return one interpreter of each minor version that runs here: the one on PATH, or pyenv's."""
    found: list[str] = []
    for minor in MINORS:
        known = [
            shutil.which(f"python3.{minor}"),
            *glob.glob(os.path.expanduser(f"~/.pyenv/versions/3.{minor}.*/bin/python")),
        ]
        for python in filter(None, known):
            if not subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
                found.append(python)
                break
    return found


def environment(python: str, folder: Path) -> Path:
    """Create an environment with nothing in it, not even pip; return its interpreter."""
    run(python, "-m", "venv", "--without-pip", folder)
    return folder / "bin" / "python"


def build_sdist(python: str, scratch: Path) -> Path:
    """Build the sdist from a copy, because setuptools writes into its folder, where tests may run meanwhile."""
    source = scratch / "source"
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(ROOT / name, source / name)
    builder = environment(python, scratch / "builder")
    requires = re.search(r'^requires = \["(.*)"\]$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert requires is not None
    pip(builder, "install", requires[1])
    code = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
    return scratch / run(builder, "-c", code, scratch, cwd=source).splitlines()[-1]


def link_torch(folder: Path) -> None:
    """Make a folder of links to this interpreter's torch and all that it requires."""
    folder.mkdir()
    waiting, seen = ["torch"], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # required on another platform only
            continue
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (link := folder / top).exists():
                link.symlink_to(Path(str(package.locate_file(top))).resolve())
        waiting += [re.split(r"[^\w.-]", text)[0] for text in package.requires or () if "extra ==" not in text]


def required_without_torch() -> list[str]:
    """Return what opreplay requires, but for torch: pip would take gigabytes of CUDA for it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [text for text in project["dependencies"] if not text.startswith("torch>")]


def check(python: str, sdist: Path, scratch: Path, asked: argparse.Namespace) -> list[str]:
    """Build and use the wheel of one Python; return its row of the table. Exits at the first thing that fails."""
    start, version = monotonic(), run(python, "-c", "import platform; print(platform.python_version())").strip()
    wheels = scratch / f"wheels-{version}"
    inside = environment(python, scratch / f"env-{version}")
    pip(inside, "wheel", "--no-deps", "--wheel-dir", wheels, sdist)
    (wheel,) = wheels.glob("*.whl")
    run(sys.executable, HERE / "check_wheel.py", wheel)
    pip(inside, "install", "--no-compile", "-c", ROOT / "constraints.txt", *required_without_torch())
    pip(inside, "install", "--no-compile", "--no-deps", wheel)
    # Away from the checkout, so that nothing but the wheel can be imported.
    smoke = (inside, "-I", HERE / "smoke.py")
    used = [run(*smoke, cwd=scratch)]
    torch = None
    if asked.torch_in:
        torch = asked.torch_in.resolve() / version.rpartition(".")[0]
    elif asked.link_torch and version == ".".join(map(str, sys.version_info[:3])):
        torch = scratch / f"torch-{version}"
        link_torch(torch)
    elif asked.torch:
        pip(inside, "install", "--no-compile", asked.torch)
    if torch is not None and torch.is_dir():
        packages = run(inside, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip()
        Path(packages, "torch_elsewhere.pth").write_text(f"{torch}\n")
    if asked.torch or (torch is not None and torch.is_dir()):
        used.append(run(*smoke, cwd=scratch))
    if asked.out:
        shutil.copy(wheel, asked.out)
    torches = ", ".join(found[1] for text in used if (found := re.search(r"torch (\S+): works", text)))
    return [version, f"{wheel.stat().st_size / 1e6:.2f} MB", torches, f"{monotonic() - start:.0f} s"]


def main() -> None:
    """Print a table, or exit with a message at the first thing that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", metavar="PYTHON")
    torch = parser.add_mutually_exclusive_group()
    torch.add_argument("--torch", metavar="REQUIREMENT")
    torch.add_argument("--torch-in", type=Path, metavar="FOLDER")
    torch.add_argument("--link-torch", action="store_true")
    parser.add_argument("--out", type=Path, metavar="FOLDER")
    asked = parser.parse_args()
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
    pythons = asked.pythons or pythons_here()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        sdist = build_sdist(pythons[0], scratch)
        print(f"{sdist.name}: {sdist.stat().st_size / 1e6:.2f} MB")
        if asked.out:
            shutil.copy(sdist, asked.out)
        print(f"{'Python':8}  {'wheel':8}  {'used with torch':24}  time")
        for python in pythons:
            row = check(python, sdist, scratch, asked)
            print(f"{row[0]:8}  {row[1]:8}  {row[2]:24}  {row[3]}", flush=True)


if __name__ == "__main__":
    main()
