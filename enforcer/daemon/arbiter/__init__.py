"""The arbiter as the daemon sees it, and its samples on their way to the ledger."""
