"""Who gives memory of a card back, when, and who gets it (docs/specs/reclaim.md). Pure."""
