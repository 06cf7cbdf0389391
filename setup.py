"""What `pyproject.toml` cannot say: whether the wheel has the compiled part.

A C compiler builds it, for CPython 3.10 and all later ones (`cp310-abi3`); where there is none, all works as well, only slower. It is left out
(`py3-none-any`) by `REDIS_SAVER_PURE=1`, for machines that none of the compiled wheels fits, and by Pythons it is not made for: PyPy, and CPython
without its lock.
"""

import os
import sys
import sysconfig

from setuptools import Extension, setup

PURE = (
    os.environ.get("REDIS_SAVER_PURE", "") not in ("", "0")
    or sys.implementation.name != "cpython"
    or bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
)
NATIVE = [
    Extension(f"redis_saver.{room}.native", [f"redis_saver/{room}/native.c"], py_limited_api=True, optional=True)
    for room in ("_serde", "_storage")
]

setup(
    ext_modules=[] if PURE else NATIVE,
    options={} if PURE else {"bdist_wheel": {"py_limited_api": "cp310"}},
)
