"""What a trace becomes: busy time, shares, bursts. Pure."""
