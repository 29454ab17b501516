"""qgpud: the daemon of one node; README.md is the map of its code.

Its interfaces: docs/specs/{hook,grant,daemon,control}.md and
docs/specs/reporting/{ledger,state,metrics}.md.
"""
