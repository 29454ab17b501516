"""The one exception that sandbox code raises on purpose; its text is a sentence for a person."""


class SandboxError(Exception):
    """Something that the user can act on: what was wrong, with which value, and what would work."""
