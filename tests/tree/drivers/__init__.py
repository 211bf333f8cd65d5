"""Measurements that run inside one SGLang tree; conftest.Tree.measure starts them."""
