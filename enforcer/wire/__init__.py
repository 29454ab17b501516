"""What crosses process boundaries: the native ABI and the messages of arbiter.sock."""
