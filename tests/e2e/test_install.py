"""The wheel holds every file of the product and runs from an empty place."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    # From an sdist, as a release is made: this also shows that the sdist holds what the wheel needs.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return next(out.glob("*.whl"))


def test_the_wheel_holds_every_file_of_every_folder(wheel: Path) -> None:
    expected = {
        (name / path.relative_to(ROOT / folder)).as_posix()
        for name, folder in ((Path(name.replace(".", "/")), folder) for name, folder in FOLDERS.items())
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert expected - packed == set(), (
        "not in the wheel: a folder without __init__.py, or a kind of file without a pattern"
    )
    assert packed - expected == set()


def test_the_wheel_runs_from_an_empty_place(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(target),
        str(wheel),
    ]
    subprocess.run(install, check=True)
    modules = ", ".join(FOLDERS)
    program = f"import {modules}; from ematix_flow.streams import jars; print(len(jars.locked()), jars.__file__)"
    # -P: the current folder does not count, so that nothing can come from the source tree.
    output = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(target), "PATH": ""},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert output == ["46", str(target / "ematix_flow/streams/jars.py")]


def test_the_command_is_installed_beside_python() -> None:
    assert (Path(sys.executable).parent / "flow").exists()


def test_imports_work_from_any_folder_in_a_development_install(tmp_path: Path) -> None:
    program = "import ematix_flow.streams as s; print(s.__file__)"
    output = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout
    assert output.strip() == str(ROOT / "streams/__init__.py")
