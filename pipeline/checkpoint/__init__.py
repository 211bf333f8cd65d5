"""The checkpoint gate: whether a checkpoint is sound, and whether a given SGLang release would serve it as meant.

Decided from ``config.json``, the index, the card and the headers of the safetensors files; payload is read in ranges,
and only where a value has to be known. Nothing here ever writes to a weight file.
"""
