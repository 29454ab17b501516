"""From a Prolog to a grant, and from a grant to its end."""
