"""Measurements that run inside one SGLang tree; conftest.Tree.measure starts them."""

import os
import sys

sys.path.append(os.environ["SGX_LIB"])
