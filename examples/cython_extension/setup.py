"""Build in place: ``python setup.py build_ext --inplace``; then ``from learning import learn``."""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

import spo_fast

extension = Extension("learning", ["learning.pyx"], include_dirs=[spo_fast.get_include()])
packages = str(Path(spo_fast.__file__).parents[1])  # an editable installation is not on the path
setup(name="learning", ext_modules=cythonize([extension], include_path=[packages]))
