"""Finds the packages below the folders that pyproject.toml maps, so that a new one is never forgotten in the wheel."""

import tomllib
from pathlib import Path

from setuptools import find_packages, setup

folders = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-dir"]

setup(packages=[*folders, *(f"{name}.{below}" for name, folder in folders.items() for below in find_packages(folder))])
