"""The compiled part of the wheel, which `pyproject.toml` cannot describe.

It is built for CPython 3.10 and all later versions (`cp310-abi3`). Without a C compiler everything works, only slower.
Two cases leave it out (`py3-none-any`): `REDIS_SAVER_PURE=1`, for machines that no compiled wheel fits, and Pythons
that it does not support, which are PyPy and CPython without the interpreter's lock.
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
NATIVE = [Extension("redis_saver._serde.native", ["redis_saver/_serde/native.c"], py_limited_api=True, optional=True)]

setup(
    ext_modules=[] if PURE else NATIVE,
    options={} if PURE else {"bdist_wheel": {"py_limited_api": "cp310"}},
)
