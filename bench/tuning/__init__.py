"""Tables for a person who chooses a default; they promise nothing."""
