"""Measurements that run inside one SGLang tree; conftest.Tree.measure starts them."""

import os
import sys

# The folder of the test tools; the host, which takes only lists of files from here, has them anyway.
sys.path += filter(None, [os.environ.get("SGX_LIB")])
