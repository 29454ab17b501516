"""What qgpud shows of its node: live state, answers to users, metrics, mapping files. Decides nothing."""
