"""What SGLang's registry imports in ``loading``: the drafts alone, rather than all of its models."""
