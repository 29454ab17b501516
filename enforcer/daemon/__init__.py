"""qgpud: the daemon of one node. docs/specs/{hook,grant,ledger}.md are its interfaces."""
