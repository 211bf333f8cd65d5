"""What SGLang's registry imports in ``loading``: the drafts and their target, rather than all of its models."""
