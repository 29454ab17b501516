"""Shows the node: live state, answers to users, metrics, mapping files. Decides nothing."""
