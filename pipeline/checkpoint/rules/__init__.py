"""All rules, in the order in which they are looked at and shown."""

from pipeline.checkpoint.rule import Rule
from pipeline.checkpoint.rules import card, draft, integrity, mtp, target

RULES: tuple[Rule, ...] = (*integrity.RULES, *target.RULES, *mtp.RULES, *draft.RULES, *card.RULES)
