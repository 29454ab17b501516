"""Build entry of setuptools; all but its build directory is declared in pyproject.toml."""

from setuptools import setup

# Its default is build/, where the native parts lie: a wheel would take those of build/lib along.
setup(options={"build": {"build_base": "build/wheel"}})
