"""The usage ledger of one node: SQLite (docs/specs/ledger.md)."""
