"""The usage ledger of one node: SQLite (docs/specs/reporting/ledger.md)."""
