"""Build, check and release model-scoped SGLang images: one module per stage."""
