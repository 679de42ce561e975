"""Programs of Debian's archive in a folder of their own, with the C library they were built for: nothing on the machine
changes, and whoever runs the tests need not be root."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path


@cache
def unpacked(package: str, suite: str = "") -> Path:
    """The package and all that it needs, fetched once per machine, from the archive that this machine is set up for.
    Without a suite, from the one of this machine."""
    assert shutil.which("apt-get"), f"{package} is fetched with apt-get, which is not here"
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ematix-flow-tests"
    caches.mkdir(parents=True, exist_ok=True)
    root = caches / (f"{package}-{suite}" if suite else package)
    # Two workers must not both fetch it; a folder that is there is complete.
    with (caches / f"{root.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            with tempfile.TemporaryDirectory(dir=caches) as folder:
                _fetch(package, suite, Path(folder))
                (Path(folder) / "root").rename(root)
    return root


def command(root: Path, program: str) -> list[str]:
    """How an unpacked program is started: by the loader that came with it."""
    loader = next(file for file in sorted(root.rglob("ld-linux*.so.*")) if file.is_file())
    folders = sorted({str(file.parent) for file in root.rglob("*.so*") if file.is_file()})
    return [str(loader), "--library-path", ":".join(folders), str(root / program)]


def _fetch(package: str, suite: str, folder: Path) -> None:
    for part in ("state/lists/partial", "cache/archives/partial", "root"):
        (folder / part).mkdir(parents=True)
    (folder / "status").touch()  # as if nothing were installed, so that nothing is left out
    settings = {
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
    }
    if suite:
        listed = _run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages").split()
        (folder / "sources.list").write_text(f"deb {listed[0]} {suite} main\n", encoding="utf-8")
        settings |= {"Dir::Etc::sourcelist": folder / "sources.list", "Dir::Etc::sourceparts": "/dev/null"}
    options = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
    _run("apt-get", *options, "update")
    _run("apt-get", *options, "install", "--yes", "--no-install-recommends", "--download-only", package)
    for archive in sorted((folder / "cache" / "archives").glob("*.deb")):
        _run("dpkg-deb", "-x", str(archive), str(folder / "root"))


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} fails:\n{done.stderr}")
    return done.stdout
