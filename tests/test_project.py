"""The ground: locks, wheel, make targets, README's commands, and the rules that hold for every file."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
REVERB = "gorila_jax.replay.reverb"


def _project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def _lines(path: Path) -> list[str]:
    """The lines of a requirements file without comments and blank ones."""
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def _locked(path: Path) -> dict[str, Version]:
    return {
        canonicalize_name(name): Version(version)
        for name, version in (line.split("==") for line in _lines(path))
    }


def _chosen(lock: str) -> list[Requirement]:
    """What the lock of that name was made from."""
    if lock == "requirements.txt":
        return [Requirement(line) for line in _lines(ROOT / "requirements.in")]
    project = _project()["project"]
    return [Requirement(line) for line in project["dependencies"] + project["optional-dependencies"]["dev"]]


def _tracked() -> list[Path]:
    """The project's files: those git knows and new ones it does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git checkout: the project's own files cannot be told from others")
    return [path for path in (ROOT / line for line in listed.splitlines()) if path.is_file()]


def _modules(package: str) -> list[str]:
    """Every module under a top-level package, from the files."""
    modules = []
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        modules.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return modules


def _python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


# Locks


@pytest.mark.parametrize("lock", ["requirements.txt", "requirements-newest.txt"])
def test_lock_holds_every_choice_at_a_version_that_satisfies_it(lock: str) -> None:
    locked = _locked(ROOT / lock)
    for requirement in _chosen(lock):
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{lock} lacks {requirement.name}: run make lock"
        assert requirement.specifier.contains(version), f"{lock} has {version} for {requirement}"


@pytest.mark.parametrize("lock", ["requirements.txt", "requirements-newest.txt"])
def test_lock_is_names_and_versions_only(lock: str) -> None:
    for line in _lines(ROOT / lock):
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line), line


def test_the_extras_admit_the_lock() -> None:
    project = _project()["project"]
    locked = _locked(ROOT / "requirements.txt")
    extras = project["optional-dependencies"]
    for line in project["dependencies"] + extras["reverb"] + extras["ray"]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), line


def test_an_environment_made_by_make_is_its_lock() -> None:
    stamp = Path(sys.prefix) / ".installed"
    if not stamp.exists():
        pytest.skip("this environment was not made by make")
    lock = "requirements-newest.txt" if "newest" in Path(sys.prefix).name else "requirements.txt"
    locked = _locked(ROOT / lock)
    installed = {name: Version(importlib.metadata.version(name)) for name in locked}
    assert installed == locked
    assert (importlib.util.find_spec("reverb") is not None) == (lock == "requirements.txt")


# The wheel


def test_every_folder_with_modules_is_a_package() -> None:
    for package in _project()["tool"]["importlinter"]["root_packages"]:
        for path in (ROOT / package).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), f"{path.parent} has no __init__.py"


def test_wheel_ships_the_library_and_the_launchers_only(tmp_path: Path) -> None:
    pytest.importorskip("build")
    needed = Requirement(_project()["build-system"]["requires"][0])
    installed = importlib.metadata.version("setuptools")
    if not needed.specifier.contains(installed):
        pytest.skip(f"building offline wants {needed}, here is {installed}")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("gorila_jax", "launchers", "benchmarks", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, source)
    (source / "README.md").write_text("gorila-jax\n")

    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist")]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=240)
    assert built.returncode == 0, built.stdout + built.stderr

    (wheel,) = (tmp_path / "dist").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    version = _project()["project"]["version"]
    metadata = f"gorila_jax-{version}.dist-info"
    assert {name.split("/")[0] for name in names} == {"gorila_jax", "launchers", metadata}
    assert f"{metadata}/licenses/LICENSE" in names
    shipped = {
        str(path.relative_to(source))
        for package in ("gorila_jax", "launchers")
        for path in (source / package).rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }
    assert shipped <= names, f"the wheel lacks {sorted(shipped - names)}"


# make

pytestmark_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

# A stand-in for Python: answers what the Makefile asks, and makes a venv whose python runs PIP.
FAKE_PYTHON = """#!/bin/sh
case "$*" in
  *ensurepip*) exit 0 ;;
  *version_info*) echo {version} ;;
  "-m venv "*) mkdir -p "$3/bin"; printf '#!/bin/sh\\n{pip}\\n' > "$3/bin/python"; chmod +x "$3/bin/python" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for lock in ("requirements.txt", "requirements-newest.txt"):
        (tmp_path / lock).write_text("")
    return tmp_path


def _fake_python(checkout: Path, version: str = "3.11", pip: str = "exit 0") -> None:
    python = checkout / "fake-python"
    python.write_text(FAKE_PYTHON.format(version=version, pip=pip))
    python.chmod(0o755)


def _make(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "PYTHON=./fake-python", "UV=no-such-uv", *arguments]
    environment = {key: value for key, value in os.environ.items() if key not in {"MAKEFLAGS", "MAKELEVEL"}}
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=60)


@pytestmark_make
@pytest.mark.parametrize("target", ["train", "test", "test-newest", "lint", "benchmark", "help"])
def test_make_has_target(checkout: Path, target: str) -> None:
    _fake_python(checkout)
    assert _make(checkout, "--dry-run", target).returncode == 0
    assert f"make {target} " in _make(checkout, "help").stdout


@pytestmark_make
def test_make_says_in_one_line_that_python_and_uv_are_missing(checkout: Path) -> None:
    result = _make(checkout, "test")
    assert result.returncode == 2
    (line,) = (line for line in result.stderr.splitlines() if not line.startswith("make: ***"))
    assert "missing Python 3.11" in line
    assert "uv" in line
    assert not (checkout / ".venv").exists()


@pytestmark_make
@pytest.mark.parametrize("target", ["test", "test-newest"])
def test_make_refuses_another_python_in_one_line(checkout: Path, target: str) -> None:
    _fake_python(checkout, version="3.13")
    result = _make(checkout, target)
    assert result.returncode == 2
    (line,) = (line for line in result.stderr.splitlines() if not line.startswith("make: ***"))
    assert "3.13" in line
    assert "3.11" in line


@pytestmark_make
def test_make_refuses_another_platform_in_one_line(checkout: Path) -> None:
    result = _make(checkout, "test", "PLATFORM=Plan9 mips")
    assert result.returncode == 2
    (line,) = (line for line in result.stderr.splitlines() if not line.startswith("make: ***"))
    assert "Plan9 mips" in line


@pytestmark_make
def test_an_interrupted_install_leaves_no_stamp(checkout: Path) -> None:
    _fake_python(checkout, pip="exit 1")
    assert _make(checkout, ".venv/.installed").returncode != 0
    assert (checkout / ".venv").exists()
    assert not (checkout / ".venv/.installed").exists()
    _fake_python(checkout)
    assert _make(checkout, ".venv/.installed").returncode == 0
    assert (checkout / ".venv/.installed").exists()


@pytestmark_make
def test_a_changed_lock_makes_the_environment_anew(checkout: Path) -> None:
    _fake_python(checkout)
    assert "Installing" in _make(checkout, ".venv/.installed").stdout
    assert "Installing" not in _make(checkout, ".venv/.installed").stdout
    left_over = checkout / ".venv/left-over"
    left_over.touch()
    later = time.time() + 2
    os.utime(checkout / "requirements.txt", (later, later))
    assert "Installing" in _make(checkout, ".venv/.installed").stdout
    assert not left_over.exists()


@pytestmark_make
@pytest.mark.parametrize("target", ["train", "benchmark"])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_make_passes_a_signal_on_and_waits(checkout: Path, target: str, sent: signal.Signals) -> None:
    pip = r"""case "$*" in *pip*) exit 0 ;; esac
trap "sleep 0.5; touch stopped; exit 3" INT TERM
touch started
while :; do sleep 0.1; done"""
    _fake_python(checkout, pip=pip.replace("\n", "\\n"))
    command = ["make", "PYTHON=./fake-python", target, 'ARGS=--seed="7"']
    made = subprocess.Popen(command, cwd=checkout, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        give_up = time.monotonic() + 30
        while not (checkout / "started").exists():
            assert time.monotonic() < give_up
            time.sleep(0.05)
        if sent is signal.SIGINT:
            os.killpg(made.pid, sent)  # as a terminal does
        else:
            made.send_signal(sent)
        assert made.wait(timeout=30) != 0
        assert (checkout / "stopped").exists()
    finally:
        if made.poll() is None:
            os.killpg(made.pid, signal.SIGKILL)


# README


def _readme_commands() -> list[str]:
    if not README.exists():
        return []
    blocks = re.findall(r"^```bash\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    return [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def _named(pattern: str) -> list[str]:
    return sorted({found for line in _readme_commands() for found in re.findall(pattern, line)})


def test_readme_names_the_two_commands() -> None:
    if not README.exists():
        pytest.skip("no README.md yet")
    assert {"train", "test"} <= set(_named(r"^make ([a-z-]+)"))


def test_every_make_target_in_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(_named(r"\bmake ([a-z-]+)")) <= targets


@pytest.mark.parametrize("module", _named(r"\bpython -m ((?:launchers|benchmarks)\.[\w.]+)"))
def test_program_in_readme_imports(module: str) -> None:
    result = _python("import importlib, sys; importlib.import_module(sys.argv[1])", module)
    assert result.returncode == 0, result.stderr


# Rules for every file

LOADS = """
import importlib, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
print("loaded:", *sorted({"tensorflow", "reverb", "tensorflow_probability", "rlax"} & set(sys.modules)))
"""


def test_importing_all_but_the_reverb_part_loads_no_tensorflow() -> None:
    modules = [name for name in _modules("gorila_jax") if not f"{name}.".startswith(f"{REVERB}.")]
    result = _python(LOADS, *modules)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].split() == ["loaded:"]


@pytest.mark.parametrize("module", [name for name in _modules("launchers") if name != "launchers"])
def test_importing_a_launcher_loads_no_tensorflow(module: str) -> None:
    result = _python(LOADS, module)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].split() == ["loaded:"]


def test_no_file_names_a_path_of_this_machine() -> None:
    foreign = [str(ROOT), f"{Path.home()}/", sys.prefix]
    for path in _tracked():
        text = path.read_bytes().decode("utf-8", errors="ignore")
        for place in foreign:
            assert place not in text, f"{path.relative_to(ROOT)} names {place}"


def test_no_module_is_a_drawer_of_odds_and_ends() -> None:
    vague = re.compile(r"(.*_)?(utils?|helpers?|common|misc)")
    for path in _tracked():
        if path.suffix == ".py":
            for part in path.relative_to(ROOT).with_suffix("").parts:
                assert not vague.fullmatch(part), f"{path.relative_to(ROOT)}: what is it about?"
