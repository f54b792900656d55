"""Build in place: ``python setup.py build_ext --inplace``; then ``import learning_c``. Nothing is linked."""

from setuptools import Extension, setup

import spo_fast

extension = Extension("learning_c", ["learning_c.c"], include_dirs=[spo_fast.get_include()])
setup(name="learning_c", ext_modules=[extension])
